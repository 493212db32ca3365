"""Workloads that are chosen by what they reach: reproducible, valid, and shown again by a command."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from click.testing import CliRunner

from kvtrail.__main__ import main
from kvtrail.connector.simulate.check import report
from kvtrail.connector.simulate.check.corpus import Corpus
from kvtrail.connector.simulate.check.mutation import mutated
from kvtrail.connector.simulate.check.profiles import MAX_LENGTH, PROFILES, scenario_of
from kvtrail.connector.simulate.check.reached import Moment
from kvtrail.connector.simulate.check.session import check, check_one
from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.check.trial import run as run_one
from kvtrail.connector.simulate.check.workload import Workload, Workloads
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Scenario, When

STALE = "Faulty:stale-lookup:OffloadConnector"


def mutations(profile: str, many: int) -> list[Scenario]:
    """Mutations of mutations, with other profiles spliced in."""
    rng, scenario, made = random.Random(profile), scenario_of(profile, 0), []
    for number in range(many):
        scenario = mutated(scenario, scenario_of(rng.choice([*PROFILES]), number), rng, busy=(7, 19, 40))
        made.append(scenario)
    return made


def mixed_or_long(profiles: Iterable[str]) -> list[Any]:
    return [each if each == "mixed" else pytest.param(each, marks=pytest.mark.long) for each in profiles]


@pytest.mark.parametrize("profile", mixed_or_long(PROFILES))
def test_mutations_keep_within_what_vllm_can_run(profile: str) -> None:
    for scenario in mutations(profile, 40):
        assert scenario.arrivals
        ids = {each.id for each in scenario.arrivals}
        assert {each.id for each in scenario.aborts} <= ids
        assert all(each.length >= 1 and each.length + each.max_tokens < MAX_LENGTH for each in scenario.arrivals)
        assert all(each.at_step >= 0 for each in scenario.arrivals)
        assert all(each.at_step >= 0 for each in scenario.aborts)
        assert all(each.at_step >= 0 for each in scenario.resets)
        longest = max(each.length + each.max_tokens for each in scenario.arrivals)
        assert scenario.num_blocks * scenario.block_size > longest * max(1, len(scenario.groups))
        assert Scenario.from_dict(json.loads(json.dumps(scenario.as_dict()))) == scenario
        if scenario.workers.load_failures:
            assert {each.when for each in scenario.aborts} <= {When.FAILED}


@pytest.mark.parametrize("profile", mixed_or_long(["abort", "load-failure", "spec-decode", "block-sizes", "mixed"]))
def test_mutations_run_to_their_end_without_a_connector(profile: str) -> None:
    for scenario in mutations(profile, 3):
        played = play(scenario, None)
        assert (played.error, played.unfinished) == (None, {}), scenario


def test_the_same_arguments_give_the_same_mutation_and_another_seed_another() -> None:
    base, other = scenario_of("mixed", 0), scenario_of("abort", 0)
    one, same, another = (mutated(base, other, random.Random(seed), busy=(4,)) for seed in (1, 1, 2))
    assert one == same != another


def moment(point: str, step: int, *, loads: int = 0) -> Moment:
    return Moment(("engine", "r"), (point,), loads, 0, 0, 0, was_reset=False, was_full=False, step=step)


def workload(profile: str = "async", seed: int = 0) -> Workload:
    return Workload(scenario_of(profile, seed), profile, seed)


def test_a_run_is_kept_if_it_reached_something_new() -> None:
    corpus = Corpus(0)
    assert corpus.show(workload(), [moment("lookup/miss", 1)], steps=10) > 0
    assert corpus.show(workload(), [moment("lookup/miss", 3)], steps=10) == 0
    assert corpus.show(workload(), [moment("lookup/miss", 3, loads=1)], steps=10) > 0
    assert [each.busy for each in corpus.kept] == [(), (3,)]
    assert corpus.show(workload(), [moment("load/open", 3)], steps=10, may_keep=False) > 0
    assert len(corpus.kept) == 2


def test_what_few_runs_have_reached_is_tried_further_and_the_shortest_run_that_reached_it() -> None:
    corpus = Corpus(0)
    for _ in range(200):
        corpus.show(workload("mixed"), [moment("lookup/miss", 1)], steps=10)
    corpus.show(workload("retry"), [moment("lookup/hit", 1), moment("load/open", 2)], steps=30)
    corpus.show(workload("reset"), [moment("lookup/hit", 1), moment("load/open", 2), moment("load/late", 3)], steps=60)
    chosen = [corpus.choose() for _ in range(60)]
    assert all(each.is_mutated for each in chosen)
    drawn = [each.profile for each in chosen]
    assert drawn.count("mixed") < 5, "what all have reached is seldom a reason"
    assert drawn.count("retry") > 0
    assert drawn.count("reset") > 0, "it alone has reached one thing"


def test_the_profile_that_has_lately_shown_the_most_per_step_comes_next() -> None:
    corpus = Corpus(0)
    corpus.show(workload("abort"), [moment(f"abort/{n}", n) for n in range(9)], steps=100)
    corpus.show(workload("retry"), [moment(f"retry/{n}", n) for n in range(9)], steps=1000)
    corpus.show(workload("reset"), [], steps=100)
    profiles = ["retry", "abort", "reset"]
    assert corpus.best_profile(profiles) == "abort"
    corpus.show(replace(workload("reset"), is_mutated=True), [moment(f"reset/{n}", n) for n in range(99)], steps=1)
    assert corpus.best_profile(profiles) == "abort", "what a mutation shows is not its profile's"
    came = []
    for _ in range(12):  # nothing is new any more
        came.append(corpus.best_profile(profiles))
        corpus.show(workload(came[-1]), [], steps=1000 if came[-1] == "retry" else 100)
    assert came[0] == "abort"
    assert {*came} == {*profiles}, "none is given up for good"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The scenarios that sessions run."""
    scenarios: list[Any] = []

    def run(subject: Subject, scenario: Any) -> Any:
        scenarios.append(scenario)
        return run_one(subject, scenario)

    monkeypatch.setattr("kvtrail.connector.simulate.check.session.run", run)
    return scenarios


@pytest.mark.parametrize("runs", [3, pytest.param(6, marks=pytest.mark.long)])
def test_the_same_seed_gives_the_same_workloads_and_profiles_come_first(played: list[Any], runs: int) -> None:
    def session() -> list[Any]:
        played.clear()
        config = {"chunk_size": 64}  # with `load_async` a thread copies, and ends when it ends
        checked = check(
            "OffloadConnector",
            profiles=["identity", "handoff"],
            config=config,
            runs=runs,
            steps=None,
            shrink_tries=0,
            workloads=Workloads.COVERAGE,
        )
        assert checked.found == []
        assert checked.trials.total() == runs
        return [*played]

    first = session()
    assert first == session()
    drawn = [scenario_of(profile, seed) for seed in (0, 1, 2) for profile in ("identity", "handoff")]
    assert [scenario in drawn for scenario in first][:2] == [True, True]
    assert any(scenario not in drawn for scenario in first)


@pytest.mark.long
def test_a_failure_of_a_mutation_is_shown_again_by_the_command_that_the_report_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, rng = scenario_of("preemption-storm", 0), random.Random(0)
    subject = Subject(STALE, {"chunk_size": 256}, own_workers=True)
    fails = next(
        scenario
        for scenario in (mutated(base, base, rng) for _ in range(20))
        if "rule: stale-lookup" in {failure.id for failure in run_one(subject, scenario)[1]}
    )
    checked = check_one(
        STALE, Workload(fails, "preemption-storm", 0, {"chunk_size": 256}, is_mutated=True), shrink_tries=20
    )
    (found,) = checked.found
    folder = tmp_path / "written"
    written = report.write(checked, folder)
    assert folder / "stale-lookup.scenario.json" in written
    text = report.as_text(checked, folder)
    (command,) = [line.removeprefix("  again: ") for line in text.splitlines() if line.startswith("  again: ")]
    assert "a mutation of profile preemption-storm, seed 0" in text
    program, *arguments = shlex.split(command)
    assert program == "kvtrail"
    monkeypatch.setitem(check_one.__kwdefaults__ or {}, "shrink_tries", 0)
    ran = CliRunner().invoke(main, [*arguments, "--json", "-o", str(tmp_path / "again")])
    assert ran.exit_code == 1, ran.output
    (failure,) = json.loads(ran.stdout)["failures"]
    assert failure["id"] == found.failure.id
    assert Scenario.from_dict(failure["scenario"]) == found.small.scenario


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("{", [], "Expecting property name"),
        ("{}", [], "not a workload"),
        (json.dumps(replace(workload(), profile="calm").as_dict()), [], "no profile 'calm'"),
        (json.dumps(workload().as_dict()), ["--profile", "abort"], "names the profile"),
    ],
)
def test_a_scenario_that_cannot_be_read_is_refused(tmp_path: Path, text: str, arguments: list[str], said: str) -> None:
    file = tmp_path / "some.scenario.json"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["check", "OffloadConnector", "--scenario", str(file), *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_the_scenario_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "check.md").read_text(encoding="utf-8")
    file = tmp_path / "mine.json"
    file.write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    arguments = ["check", "OffloadConnector", "--scenario", str(file), "--json", "-o", str(tmp_path / "check")]
    result = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert result["failures"] == []
    assert result["hits"] >= 2, "once after vLLM's cache was reset, and again after it was reset while it ran"
    assert result["reached"]["preempt/any"] == 1
