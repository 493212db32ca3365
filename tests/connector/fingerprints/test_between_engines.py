"""Default settings on two real engines that share a store: every wrong whole block is found, by what both report."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_engines import damage, found, judged, sharing

from kvtrail.tracer.events.events import BlockCheck, Event
from kvtrail.tracer.model.findings import Unknown

DEFAULT: dict[str, str] = {}
FAULTS = 60
"""Fifteen of each kind of damage."""
PROMPTS = [f"prompt{n}" for n in range(FAULTS)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def heard(store: Path) -> dict[str, list[Event]]:
    """What three engines record: one computes, one loads what is right, and one loads what is wrong."""
    one = sharing(store, "one", PROMPTS, DEFAULT)
    right = sharing(store, "right", PROMPTS, DEFAULT)
    damage(store, 0)
    return {"one": one, "right": right, "wrong": sharing(store, "wrong", PROMPTS, DEFAULT)}


@pytest.mark.parametrize("order", [("one", "wrong"), ("wrong", "one")], ids=["computed first", "loaded first"])
def test_each_wrong_load_is_found(heard: dict[str, list[Event]], order: tuple[str, str]) -> None:
    findings = found(*(heard[name] for name in order))
    assert {(finding.rule, finding.engine) for finding in findings} == {("byte-drift", "wrong")}
    assert {finding.external for finding in findings} == {*PROMPTS}


def test_what_is_right_is_judged_and_causes_no_findings(heard: dict[str, list[Event]]) -> None:
    for order in (("one", "right"), ("right", "one")):
        together = judged(*(heard[name] for name in order))
        assert together.findings == {}
    together, alone = judged(heard["one"], heard["right"]), judged(heard["right"])
    assert alone.unknown["byte-drift", Unknown.CONTENT] - together.unknown["byte-drift", Unknown.CONTENT] == FAULTS


def test_what_is_reported_is_compact(heard: dict[str, list[Event]]) -> None:
    checks = [each for each in heard["one"] if isinstance(each, BlockCheck)]
    computed = [each for each in checks if each.check_look == "computed" and each.check_fingerprints]
    assert sum(len(each.check_fingerprints) for each in computed) == 20 * sum(each.check_blocks for each in computed)
