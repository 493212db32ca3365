"""What docs/findings.md says of connectors that others wrote can still be seen, and its traces show it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
import real_lmcache

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from known_findings import FINDINGS, TRACES, KnownFinding

from kvtrail.tracer.history.audit import audit

DOCS = real_lmcache.ROOT / "docs" / "findings.md"
IN_EACH_RUN = ("0.5.6", "0.3.10", None)
"""Versions of LMCache, and none."""


def shown(findings: Iterable[KnownFinding]) -> list[Any]:
    """Of other versions of LMCache they are long: each version is a download and a process that imports it."""
    marks = {each.id: () if each.lmcache in IN_EACH_RUN else pytest.mark.long for each in FINDINGS}
    return [pytest.param(each, id=each.id, marks=marks[each.id]) for each in findings]


@pytest.mark.parametrize("finding", shown(FINDINGS))
def test_the_scenario_shows_it(finding: KnownFinding) -> None:
    assert f"rule: {finding.rule}" in finding.play()["failures"]


@pytest.mark.parametrize("finding", shown(finding for finding in FINDINGS if finding.mended))
def test_without_that_one_thing_it_is_gone(finding: KnownFinding) -> None:
    """So the scenario shows the connector's fault, and not one of the fake workers or of the simulator."""
    assert finding.play(connector=finding.mended)["failures"] == {}


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_its_trace_is_small_and_shows_it(finding: KnownFinding) -> None:
    assert finding.trace.stat().st_size < 60_000
    assert finding.rule in {each.rule for each in audit([finding.trace]).findings}


def test_every_trace_is_documented() -> None:
    readme = (TRACES / "README.md").read_text(encoding="utf-8")
    assert sorted(path.stem for path in TRACES.glob("*.jsonl")) == sorted(finding.id for finding in FINDINGS)
    for finding in FINDINGS:
        assert f"`{finding.id}.jsonl`" in readme
        assert re.search(rf"tests/golden/findings/{re.escape(finding.id)}\.jsonl", DOCS.read_text(encoding="utf-8"))
