"""Each requirement of the suite is broken by a connector, and exactly what the table says fails then."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

import faults  # noqa: F401 - makes them known
from breakers import BREAKERS, Breaker

from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.session import Checked, check
from kvtrail.connector.simulate.conformance import verdict
from kvtrail.connector.simulate.conformance.requirements import REQUIREMENTS
from kvtrail.connector.simulate.conformance.verdict import judges_of

REQUIRED = {each.id: each for each in REQUIREMENTS}
DEAR = {
    "abort", "async", "combined", "crowd", "full-store", "groups", "kv-events", "load-failure", "mixed", "preemption-storm",
    "ranks", "reset", "room",
}  # fmt: skip
"""Profiles whose breakers `make test-all` tries, but for `QUICK`."""
QUICK = {"core.lookup.after-preemption", "extended.failures.not-stored", "extended.failures.not-offered"}
RUNS: dict[str, Checked] = {}


def ran(breaker: Breaker) -> Checked:
    """One run of it; several requirements may be broken by it."""
    connector, profile, _, seed, config, *_ = breaker
    key = repr((connector, profile, seed, config))
    if key not in RUNS:
        RUNS[key] = check(connector, config=config, profiles=[profile], seed=seed, steps=None, runs=1, shrink_tries=0)
    return RUNS[key]


def test_each_requirement_has_a_breaker_and_what_fails_with_it_names_its_judges() -> None:
    assert BREAKERS.keys() == REQUIRED.keys()
    for requirement, breaker in BREAKERS.items():
        judges = {breaker.judge, breaker.judge.partition("/")[0], *breaker.then.split()}
        for id in {requirement, *breaker.also.split()}:
            by = {*REQUIRED[id].judged_by, *(each.partition("/")[0] for each in REQUIRED[id].judged_by)}
            assert not judges.isdisjoint(by) or REQUIRED[id].covers_all, (requirement, id)


@pytest.mark.parametrize(
    "requirement",
    [
        pytest.param(id, marks=pytest.mark.long if breaker.profile in DEAR and id not in QUICK else ())
        for id, breaker in BREAKERS.items()
    ],
)
def test_a_connector_that_breaks_a_requirement_fails_exactly_what_the_table_says(requirement: str) -> None:
    breaker, required = BREAKERS[requirement], REQUIRED[requirement]
    checked = ran(breaker)
    present = {*features.claimed(breaker.connector, breaker.config or {}), *features.detected(checked.reached)}
    judges = {judge for each in checked.found for judge in judges_of(each.failure)}
    failed = {each.id for found in checked.found for each in verdict.broken_by(found, sorted(present))}
    assert breaker.judge in judges
    assert {judge.partition("/")[0] for judge in judges} == {
        each.partition("/")[0] for each in (breaker.judge, *breaker.then.split())
    }
    if required.feature is not None:
        failed -= {each.id for each in REQUIREMENTS if each.covers_all and each.feature == required.feature} - {
            requirement
        }
    assert failed == {requirement, *breaker.also.split()}
