"""The pages of the conformance matrix are those of its reports."""

from __future__ import annotations

from pathlib import Path

import conformance_pages as pages
import conformance_reports
import matrix
import pytest
import upstream_causes
from connectors import ROWS, VLLMS


def report(**results: str) -> dict[str, object]:
    """A report of these requirements."""
    by_result = {kind: [name for name, result in results.items() if result == kind] for kind in ("passed", "failed")}
    verdict = "failed" if by_result["failed"] else "passed"
    return {"made": "2026-11-26", "steps": 6000, "suite": "1", "failures": [], **by_result, "verdict": verdict}


def columns(*history: str) -> list[pages.Column]:
    """Columns of one connector; one requirement had these results, the oldest version first."""
    row = ROWS[0].id
    versions = [f"0.{20 + number}.0" for number in range(len(history))]
    return [
        pages.Column(version, f"{version}.json", {row: report(lookup=result, abort="passed")})
        for version, result in zip(versions, history, strict=True)
    ]


def test_the_pages_are_made_from_the_reports() -> None:
    assert pages.MATRIX.read_text("utf-8") == pages.matrix(ROWS, *pages.all_columns())


def test_each_failure_was_looked_into() -> None:
    headings = [
        line[3:] for line in (pages.DOCS / "findings.md").read_text("utf-8").splitlines() if line.startswith("## ")
    ]
    for row in ROWS:
        for failure, where in pages._failures(row, *pages.all_columns()).items():
            for version, each in where:
                cause = upstream_causes.cause(row.id, version, failure, each["text"])
                assert cause in headings, (row.id, version, failure)


def test_versions_that_follow_each_other_are_a_range() -> None:
    orders = {"vLLM": ["0.20", "0.21", "0.22", "0.23"], "LMCache": ["0.4", "0.5"]}
    failed = ["LMCache 0.5", "vLLM 0.20", "vLLM 0.21", "vLLM 0.23"]
    assert list(pages._ranges(orders, failed)) == ["vLLM 0.20 to 0.21", "vLLM 0.23", "LMCache 0.5"]


def test_a_link_leads_to_a_heading() -> None:
    known = "a known issue (known: #2158)"
    assert upstream_causes.anchor(known) == "a-known-issue-known-2158"
    assert upstream_causes.anchor("LMCache 0.3.10 and 0.3.11: KV, `x_y`") == "lmcache-0310-and-0311-kv-x_y"


@pytest.mark.parametrize(
    ("history", "regression"),
    [
        (("passed", "passed", "passed"), None),
        (("failed", "failed", "passed"), None),
        (("passed", "failed", "failed"), ("0.21.0", "0.20.0", "")),
        (("passed", "failed", "passed"), ("0.21.0", "0.20.0", "0.22.0")),
        (("passed", "not exercised", "failed"), ("0.22.0", "0.20.0", "")),
        (("not exercised", "failed", "failed"), None),
    ],
)
def test_a_regression_is_where_a_requirement_that_passed_fails(
    history: tuple[str, ...], regression: tuple[str, str, str] | None
) -> None:
    page = pages.matrix(ROWS[:1], columns(*history), [])
    assert ("Regressions" in page) is (regression is not None)
    if regression is not None:
        first, last, again = regression
        assert f"| {ROWS[0].id} | `lookup` | {first} | {last} | {again} |" in page


def test_a_cell_says_how_much_failed_and_how_much_was_reached() -> None:
    page = pages.matrix(ROWS[:1], columns("passed", "failed", "not exercised"), [])
    heads = " | ".join(f"[0.2{number}.0](reports/0.2{number}.0.json)" for number in (2, 1, 0))
    assert f"| connector | {heads} |" in page
    assert "| OffloadConnector | ✓ 1 | ✗ 1 of 2 | ✓ 2 |" in page


def test_a_report_of_the_suite_is_a_line_of_its_versions_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "REPORTS", tmp_path)
    short = pages.in_short(conformance_reports.report())
    assert (len(short["passed"]), short["failed"]) == (3, ["core.lookup.beyond-computed"])
    assert short["not_exercised"]["it was refused"] == ["extended.groups.hit"]
    (failure,) = short["failures"]
    assert {"again", "scenario", "text"} <= failure.keys()
    cells = {pages.name("OffloadConnector", None): short, pages.name("LMCacheConnectorV1", "0.5.5"): short}
    pages.save("0.20.0", cells)
    assert pages.read("0.20.0") == cells
    assert [line.partition('":')[0] for line in (tmp_path / "0.20.0.json").read_text("utf-8").splitlines()] == [
        "{", '"LMCacheConnectorV1 with LMCache 0.5.5', '"OffloadConnector', "}",
    ]  # fmt: skip
    assert pages.read("0.21.0") == {}


def test_each_tested_version_has_a_column() -> None:
    assert set(VLLMS) < set(matrix.VERSIONS)
