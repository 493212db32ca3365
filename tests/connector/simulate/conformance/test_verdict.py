"""A requirement is passed if it was at risk while somebody looked, and a failure breaks the requirements of its world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.simulate.check.coverage import POINTS, RunCoverage
from kvtrail.connector.simulate.check.features import Feature
from kvtrail.connector.simulate.check.session import Checked
from kvtrail.connector.simulate.conformance import verdict
from kvtrail.connector.simulate.conformance.requirements import of_level
from kvtrail.connector.simulate.conformance.verdict import Judged, Result, Setting, Verdict, judge, overall
from kvtrail.connector.simulate.judges.failure import CRASH, RULE, Failure
from kvtrail.connector.simulate.scenario import Arrival, Scenario, Workers
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.model.findings import Verdict as RuleVerdict

Broken = Callable[..., list[str]]
PLAIN = Scenario(arrivals=(Arrival("r", (("p", 40),)),))
GROUPS = replace(PLAIN, groups=(CacheGroup(FULL), CacheGroup(SLIDING, window=64)))
RANKS = replace(PLAIN, settings={"tensor_parallel_size": 2})
SETTING = Setting(claimed=[], detected=[], overrides_reset=True, other_writers=False, not_driven={})


def ran(*reached: str, rules: Sequence[str] = ()) -> RunCoverage:
    checks = {(rule, RuleVerdict.OK): 1 for rule in rules}
    return RunCoverage(Counter(reached), checks)


def results(*runs: RunCoverage, setting: Setting = SETTING, **more: Any) -> Mapping[str, Judged]:
    checked = Checked(connector="Mine", seed=0, runs=list(runs), **more)
    for each in runs:
        checked.reached += each.reached
    return {each.requirement.id: each for each in judge(of_level("all"), checked, setting)}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """The requirements that a failure breaks, given the points that its small run has reached; all of them, without any."""

    def ids(
        kind: str,
        what: str,
        scenario: Scenario = PLAIN,
        *,
        at: Sequence[str] = (*POINTS,),
        present: Sequence[Feature] = (),
        where: str = "",
    ) -> list[str]:
        monkeypatch.setattr(verdict, "reached", lambda played: Counter(at))
        small = SimpleNamespace(scenario=scenario, played=None)
        found: Any = SimpleNamespace(failure=Failure(kind, what, "", where=where), small=small)
        return [each.id for each in verdict.broken_by(found, present)]

    return ids


def test_passed_is_what_was_at_risk_while_somebody_looked() -> None:
    of_it = results(ran("lookup/beyond-computed", rules=["over-report"]))["core.lookup.beyond-computed"]
    assert (of_it.result, of_it.reached, of_it.why) == (Result.PASSED, 1, None)


def test_what_was_not_checked_is_not_passed() -> None:
    of_it = results(ran("lookup/after-eviction"), unprobed="it has none")["core.lookup.after-eviction"]
    assert (of_it.result, of_it.reached) == (Result.NOT_EXERCISED, 0)
    assert of_it.why == "only a probe shows what it plans and what its store holds (it has none)"
    never = results(ran("end/all"), unprobed="it has none")["core.store.no-gap"]
    assert never.why == of_it.why
    assert "never reached" in (results(ran("end/all"))["core.store.no-gap"].why or "")


def test_what_was_at_risk_in_one_run_is_not_passed_by_a_look_at_another() -> None:
    of_it = results(ran("end/aborted-preempted"), ran("end/all"))["core.abort.preempted"]
    assert (of_it.result, of_it.reached) == (Result.NOT_EXERCISED, 0)
    both = ran("end/aborted-preempted", "end/all")
    assert results(ran("end/aborted-preempted"), both)["core.abort.preempted"].reached == 1


def test_what_was_never_reached_says_what_was_missing() -> None:
    of_it = results(ran("end/all"))["core.abort.preempted"]
    assert of_it.result is Result.NOT_EXERCISED
    assert of_it.why == "it was never reached: no run in which a request was aborted that was preempted"


def test_bytes_pass_nothing_where_workers_are_fakes() -> None:
    of_it = results(ran("step/after-load"), fake_workers="that was asked for")["core.load.in-time"]
    assert of_it.result is Result.NOT_EXERCISED
    assert of_it.why == "bytes were not compared, since its workers are fakes: that was asked for"
    never = results(ran("end/all"), fake_workers="that was asked for")["core.load.contents"]
    assert never.why == of_it.why
    real = ran("step/after-load", "bytes/loads")
    assert results(real)["core.load.in-time"].result is Result.PASSED


def test_a_store_that_was_never_full_proves_nothing_of_its_room() -> None:
    of_it = results(ran("end/all"))["core.store.as-large"]
    assert (of_it.result, of_it.why) == (Result.NOT_EXERCISED, "the store was never full at rest")
    full = replace(ran("end/all"), capacity_compared=True)
    assert results(full)["core.store.as-large"].result is Result.PASSED


def test_an_unrequested_load_is_looked_for_where_a_probe_shows_plans() -> None:
    """A correct connector plans none, so that the rule has nothing to say `ok` of."""
    of_it = results(ran("alloc/answer-discarded"))["core.allocation.nothing-to-load"]
    assert of_it.result is Result.NOT_EXERCISED
    of_it = results(ran("alloc/answer-discarded", "probe/seen"))["core.allocation.nothing-to-load"]
    assert of_it.result is Result.PASSED


def test_hits_prove_nothing_of_a_store_that_others_write() -> None:
    hit = ran("lookup/hit")
    assert results(hit)["core.lookup.only-stored"].result is Result.PASSED
    others = replace(SETTING, other_writers=True)
    assert results(hit, setting=others)["core.lookup.only-stored"].result is Result.NOT_EXERCISED


def test_a_feature_that_is_not_there_is_not_exercised() -> None:
    of_it = results(ran("groups/hit", rules=["partial-hit"]))["extended.groups.joint-boundary"]
    assert of_it.result is Result.NOT_EXERCISED
    assert of_it.why == "the connector does not claim it (several KV cache groups), and it was not seen"
    refused = replace(SETTING, claimed=[], not_driven={"groups": "ValueError: no"})
    assert results(setting=refused)["extended.groups.joint-boundary"].why == "ValueError: no"


def test_a_connector_without_a_reset_need_not_forget() -> None:
    without = replace(SETTING, overrides_reset=False)
    run = ran("lookup/hit", "lookup/hit-before-reset", rules=["reset-hit"])
    assert results(run, setting=without)["core.reset.forgets"].result is Result.NOT_EXERCISED
    assert results(run)["core.reset.forgets"].result is Result.PASSED


def test_a_failure_breaks_the_requirements_of_its_judge(broken: Broken) -> None:
    assert broken(RULE, "stale-lookup") == [
        "core.lookup.beyond-computed", "core.lookup.free-of-side-effects", "core.lookup.after-preemption",
    ]  # fmt: skip
    assert "extended.async-lookups.true-when-answered" in broken(RULE, "stale-lookup", present=[Feature.ASYNC_LOOKUPS])
    assert broken(CRASH, "AssertionError") == ["core.engine.lives"]


def test_a_failure_breaks_only_what_was_at_risk(broken: Broken) -> None:
    bytes = ("bytes", "a request has read KV that is not its own")
    assert broken(*bytes, at=["step/after-load"]) == ["core.load.in-time"]
    assert broken(*bytes, at=["end/id-again"]) == ["core.end.same-id"]
    assert len(broken(*bytes, at=[])) > 10  # it belongs to some requirement in any case


def test_a_failure_with_several_ranks_is_none_of_core(broken: Broken) -> None:
    assert broken("bytes", "a request has read KV that is not its own", RANKS) == [
        "extended.ranks.shortest", "extended.ranks.own-part", "extended.ranks.all-of-core",
    ]  # fmt: skip
    assert broken(RULE, "retried-lookup", RANKS) == ["extended.ranks.all-of-core"]
    assert broken(CRASH, "AssertionError", GROUPS) == ["extended.groups.all-of-core"]
    failing = replace(PLAIN, workers=Workers(load_failures=0.3))
    assert broken(RULE, "failed-load-used", failing, where="stored") == [
        "extended.failures.not-stored", "extended.failures.all-of-core",
    ]  # fmt: skip


def test_no_failure_is_without_a_requirement(broken: Broken) -> None:
    """Even where the rule is one of a feature that the connector does not claim."""
    assert broken(RULE, "partial-hit", where="groups") == ["extended.groups.joint-boundary"]


def test_a_failure_is_described_by_what_was_asked_for_where_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "reached", lambda played: Counter((*POINTS,)))
    setting = replace(SETTING, detected=[Feature.ASYNC_LOOKUPS])
    for what, expected in (
        ("over-report", {"core.lookup.beyond-computed", "core.lookup.after-preemption"}),
        ("endless-deferral", {"extended.async-lookups.answered"}),
    ):
        small = SimpleNamespace(scenario=PLAIN, played=None)
        found: Any = SimpleNamespace(failure=Failure(RULE, what, ""), small=small)
        checked = Checked(connector="Mine", seed=0, found=[found])
        judged = verdict.judge(of_level("core"), checked, setting)
        assert {each.requirement.id for each in judged if each.result is Result.FAILED} == expected


def test_the_verdict_needs_something_of_each_subject() -> None:
    checked = Checked(connector="Mine", seed=0, lookups=99, hits=99, steps=Counter({"mixed": 5000}))
    nothing = judge(of_level("core"), checked, SETTING)
    said, why = overall(nothing, checked)
    assert said is Verdict.INCONCLUSIVE
    assert "Nothing of “lookup” was exercised." in why
    all_well = [replace(each, result=Result.PASSED) for each in nothing]
    assert overall(all_well, checked) == (Verdict.PASSED, [])
    without_loads = [
        replace(each, result=Result.NOT_EXERCISED) if each.requirement.subject == "load" else each for each in all_well
    ]
    assert overall(without_loads, checked) == (Verdict.INCONCLUSIVE, ["Nothing of “load” was exercised."])
    assert overall(all_well, replace(checked, hits=3))[0] is Verdict.INCONCLUSIVE


def test_the_likeliest_requirement_of_a_failure_comes_first() -> None:
    """What was at risk in runs that failed, and in few others, comes before what is at risk in all of them."""
    wrong = frozenset({"bytes: wrong"})
    runs = [
        replace(ran("bytes/loads", "store/open-at-preemption"), failures=wrong),
        replace(ran("bytes/loads", "store/open-at-preemption", "reset/while-running"), failures=wrong),
        ran("bytes/loads"),
        ran("bytes/loads", "reset/while-running"),
    ]
    names = ("core.load.contents", "core.reset.while-running", "core.store.read-before-reuse", "core.end.same-id")
    broken = [each for each in of_level("all") if each.id in names]
    first = [each.id for each in verdict.likeliest_first(broken, "bytes: wrong", runs)]
    assert first[0] == "core.store.read-before-reuse"
    assert first[1:] == ["core.load.contents", "core.reset.while-running", "core.end.same-id"]
    assert verdict.likeliest_first(broken, "seen by nobody", runs) == broken
