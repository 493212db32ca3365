"""Every alert and every rule has a page, every page has all its parts, and every link leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml
from incidents.corpus import INCIDENTS
from watching import DASHBOARD, ROOT, RULES

from kvtrail.tracer.rules import pages

DOCS = ROOT / "docs"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]
PAGES = [*sorted((DOCS / "runbooks").glob("*.md")), *pages.files().values()]
OF_A_SIDECAR = {
    "KvtrailSidecarDown", "KvtrailStoreFailing", "KvtrailStoreDamaged", "KvtrailInternalErrors", "KvtrailSpoolWaiting",
}  # fmt: skip
"""Alerts that are about no request."""
THE_HOUR_BEFORE = (
    'from={{ query "1e3 * (time() - 3600)" | first | value | printf "%.0f" }}'
    '&to={{ query "1e3 * time()" | first | value | printf "%.0f" }}'
)
PARTS = ("What it means", "Look at", "Usual causes", "Now", "Send to the maintainers")


def test_every_alert_and_every_rule_has_a_page_and_no_page_is_left_over() -> None:
    alerts = {alert["alert"] for alert in ALERTS}
    assert {page.stem for page in (DOCS / "runbooks").glob("*.md")} == alerts
    index = (DOCS / "runbooks.md").read_text()
    for name in alerts:
        assert f"[{name}](runbooks/{name}.md)" in index
    assert runpy.run_path(str(DOCS / "rule_pages.py"))["runbook_table"]() in index


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_what_an_alert_needs(alert: dict[str, dict[str, str]]) -> None:
    name = alert["alert"]
    assert re.fullmatch(r"Kvtrail([A-Z][a-z]+)+", str(name))
    assert alert["labels"]["severity"] in ("critical", "warning")
    links = {"runbook_url": f"{DASHBOARD}/findings?runbook={name}"}
    if str(name) not in OF_A_SIDECAR:
        links["dashboard_url"] = alert["annotations"]["dashboard_url"]
        page = re.fullmatch(
            rf"{DASHBOARD}/(requests|findings)\?[^ ]+=.*{re.escape(THE_HOUR_BEFORE)}", links["dashboard_url"]
        )
        assert page, links["dashboard_url"]
    assert alert["annotations"] == {
        "summary": alert["annotations"]["summary"], "description": alert["annotations"]["description"], **links
    }  # fmt: skip
    assert f"[{name}](runbooks/{name}.md) | {alert['labels']['severity']} |" in (DOCS / "alerts.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_all_parts_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n" if page.stem.startswith("Kvtrail") else "---\ntitle: ")
    for part in PARTS:
        assert len(re.findall(rf"\*\*{part}\.\*\* \S", text)) == 1, part
    assert not _broken(page)


def test_a_rules_page_names_the_incidents_that_are_known_of_it() -> None:
    for incident in INCIDENTS:
        if incident.rule is not None:
            assert incident.url in pages.page(incident.rule).runbook, incident.id


def test_links_in_the_index_and_in_the_docs_of_alerts_lead_somewhere() -> None:
    for name in ("runbooks.md", "alerts.md", "metrics.md"):
        assert not _broken(DOCS / name)


def test_recording_rules_are_named_as_prometheus_wants_and_documented() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for record in (rule["record"] for group in groups for rule in group["rules"] if "record" in rule):
        assert re.fullmatch(r"[a-z_]+:(kvtrail|vllm)_[a-z_]+:[a-z0-9_]+", record)
        assert record.split(":")[1] in (DOCS / "alerts.md").read_text()


def _broken(page: Path) -> list[str]:
    """Relative links of a page to files, or to headings in them, that are not there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page if not path else (page.parent / path).resolve()
        if not file.is_file() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    return broken


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
