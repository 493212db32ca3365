"""A requirement that a session passes could have failed: a connector breaks it, and one of its judges sees that."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import faults  # noqa: F401 - makes them known
from breakers import BREAKERS, NOT_SHOWN, Breaker

from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.session import Checked, check
from kvtrail.connector.simulate.conformance import verdict
from kvtrail.connector.simulate.conformance.requirements import REQUIREMENTS
from kvtrail.connector.simulate.conformance.verdict import judges_of

REQUIRED = {each.id: each for each in REQUIREMENTS}
QUICK = (
    "core.lookup.only-stored",
    "core.abort.running",
    "extended.failures.not-stored",
    "extended.failures.not-offered",
)
"""The others are tried by `make test-all`."""
RUNS: dict[str, Checked] = {}


def ran(breaker: Breaker) -> Checked:
    key = repr(breaker[:2] + breaker[3:])
    if key not in RUNS:
        RUNS[key] = check(
            breaker.connector,
            config=breaker.config,
            profiles=[breaker.profile],
            seed=breaker.seed,
            steps=None,
            runs=1,
            shrink_tries=0,
        )
    return RUNS[key]


def test_each_requirement_has_a_breaker_or_a_reason() -> None:
    assert BREAKERS.keys() | NOT_SHOWN.keys() == REQUIRED.keys()
    assert not BREAKERS.keys() & NOT_SHOWN.keys()


@pytest.mark.parametrize(
    "requirement", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in BREAKERS]
)
def test_a_connector_that_breaks_a_requirement_fails_it_by_one_of_its_judges(requirement: str) -> None:
    breaker = BREAKERS[requirement]
    assert breaker.judge in REQUIRED[requirement].judged_by
    checked = ran(breaker)
    present = {*features.claimed(breaker.connector, breaker.config or {}), *features.detected(checked.reached)}
    seen = [each for each in checked.found if breaker.judge in judges_of(each.failure)]
    assert seen, [each.failure.id for each in checked.found]
    assert requirement in {each.id for found in seen for each in verdict.broken_by(found, sorted(present))}
