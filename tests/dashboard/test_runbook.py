"""Runbooks as the dashboard shows them: all of them are there, and their links are pages of the dashboard."""

from __future__ import annotations

import re

import pytest

from kvtrail.dashboard.content import runbook
from kvtrail.tracer.rules import pages

RULES = {*pages.files()}


def test_every_rule_has_one_and_the_others_are_alerts() -> None:
    assert set(runbook.names()) >= RULES
    assert all(name.startswith(runbook.ALERT) for name in set(runbook.names()) - RULES)


@pytest.mark.parametrize("name", ["", *runbook.names()])
def test_links_lead_to_pages_of_the_dashboard_or_out(name: str) -> None:
    text = runbook.text(name)
    assert text is not None
    assert text.startswith(f"## {name}")
    for target in re.findall(r"\]\(([^)]*)\)", text):
        page, _, rest = target.partition("?runbook=")
        if target.startswith("findings?rule="):
            assert target.partition("=")[2] in RULES
        elif target.startswith("findings?runbook=all#"):
            heading = target.partition("#")[2].replace("-", " ")
            assert f"\n### {heading}\n" in str(runbook.text("")).lower()
        elif page == "findings":
            assert rest in runbook.names()
        else:
            assert target.startswith("https://")


def test_links_between_runbooks_are_kept_and_to_files_that_are_not_served_are_words() -> None:
    text = str(runbook.text("KvtrailSevereDrift"))
    assert "([stale-lookup](findings?runbook=stale-lookup))" in text
    assert "](findings?runbook=all#what-to-send)" in text
    assert "The expression: kvtrail.rules.yml." in text


@pytest.mark.parametrize("name", ["KvtrailNothing", "../limits", "..", "stale-lookup.md", "STALE-LOOKUP"])
def test_an_unknown_name_has_none(name: str) -> None:
    assert runbook.text(name) is None


@pytest.mark.parametrize("name", ["", *runbook.names()])
def test_an_issues_number_at_the_beginning_of_a_line_is_no_heading(name: str) -> None:
    assert "##" not in re.sub(r"^#+ ", "", runbook.text(name) or "", flags=re.MULTILINE)
