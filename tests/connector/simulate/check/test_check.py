"""`kvtrail check` finds every known fault on its own, accuses no correct connector, and writes down what others can use."""

from __future__ import annotations

import json
import logging
import shlex
import signal
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from faults import FAULTS, NATIVE, OF_COPIES, RULES
from pytest_alone import run_pytest

from kvtrail.__main__ import main
from kvtrail.connector.commands.check import check as command
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check import features, report
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest, in_turn, varied
from kvtrail.connector.simulate.check.profiles import OFTEN, PAIR_PROFILES, PROFILES, scenario_of
from kvtrail.connector.simulate.check.session import Checked, NothingRecorded, check, turns
from kvtrail.connector.simulate.check.trial import run as run_one
from kvtrail.connector.simulate.check.trial import without_numbers
from kvtrail.connector.simulate.conformance import report as conformance
from kvtrail.connector.simulate.conformance import suite
from kvtrail.connector.simulate.judges.failure import BYTES, HITS
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.commands.options import INCONCLUSIVE
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.shrink import minimal

OF_VLLM = {"poll-starvation", "stuck-step"}
"""Faults of vLLM's own loop, which `check` drives itself: it never goes on."""
RECURRENT = {"state-boundary"}
"""Faults of models with recurrent states, which no profile has."""
OF_NIXL = {"unread-load"}
"""Faults of another connector than those that are checked here."""
OF_HANDOFFS = {"refused-handoff"}
"""Faults of what is handed on, which `check` does not drive with a connector that claims no hand-off."""
STALE = "Faulty:stale-lookup:OffloadConnector"
AGAIN = f"kvtrail check '{STALE}' --profile preemption-storm --seed 0 --runs 1 --config '{{\"chunk_size\": 256}}'"
"""What the report says to do to see its failure again."""
TRIES = 12
"""To make it small: enough to leave out most of its requests."""
SHOWN_BY = {"late-store": "conversation", "blocks-exchanged": "chunked-prefill", "stray-write": "chunked-prefill"}
"""Profiles whose first workload shows a wrong copy; that of `preemption-storm` shows the others."""
QUICK = ("alloc-mismatch", "async-declaration", "double-free", "endless-deferral", "evicted-hit", "failed-call")
"""Faults that are found within a few runs. All others are tried by `make test-all`, and each of them by test_faults.py."""
IN_TURN = {
    "OffloadConnector": ("reset", "same-id", "crowd", "multi", "ranks", "states"),
    "OffloadingConnector": ("retry", "async", "handoff", "mixed", "groups", "block-sizes"),
}
"""Profiles that no other test here drives with a correct connector, shared among the two."""


class Shown(Exception):
    """The fault has been found, and the session need not go on."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.long)
        for each in sorted({*FAULTS} - OF_VLLM - RECURRENT - OF_NIXL - OF_HANDOFFS)
    ],
)
def test_every_fault_is_found_without_a_hint_where_to_look(fault: str) -> None:
    """Within the steps of five sessions."""

    def leave_when_shown(checked: Checked, doing: str) -> None:
        if any((found.failure.kind, found.failure.what) == ("rule", RULES[fault]) for found in checked.found):
            raise Shown

    name = f"Faulty:{fault}:{'OffloadingConnector' if fault in NATIVE else 'OffloadConnector'}"
    runs, steps = len(PROFILES), 0
    try:
        while steps < 100_000:
            checked = check(name, steps=None, runs=runs, seed=steps, shrink_tries=0, on_progress=leave_when_shown)
            steps += checked.steps.total()
            assert steps, [found.failure.text for found in checked.found]
    except Shown:
        return
    pytest.fail(f"not found in {steps} steps; found: {sorted(found.failure.id for found in checked.found)}")


@pytest.mark.parametrize("hinted", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", OF_COPIES)
def test_every_wrong_copy_is_found_by_its_bytes(fault: str, hinted: bool) -> None:
    """The fingerprints may find it as well, of what they had seen computed: that is the same failure."""
    where = [SHOWN_BY.get(fault, "preemption-storm")] if hinted else None
    runs, steps = (1, None) if hinted else (None, 20_000)
    name = f"Faulty:{fault}:OffloadConnector"
    checked = check(name, profiles=where, runs=runs, steps=steps, stop_at_first=True, shrink_tries=0)
    found = {found.failure.id for found in checked.found}
    assert found - {"rule: byte-drift"} == {"bytes: a request has read KV that is not its own"}


def test_wrong_kv_is_one_failure_though_bytes_and_fingerprints_both_show_it() -> None:
    tested = ConnectorUnderTest("Faulty:blocks-exchanged:OffloadConnector", {"chunk_size": 64}, own_workers=True)
    played, failures = run_one(tested, scenario_of("preemption-storm", 0), at_rest=False)
    assert "byte-drift" in {each.rule for each in played.findings}
    assert [each.id for each in failures if each.kind == BYTES or "byte" in each.what] == [
        "bytes: a request has read KV that is not its own"
    ]


def test_vllm_says_nothing_of_failures_that_a_workload_provokes(tmp_path: Path) -> None:
    def fails_loads() -> None:
        check("OffloadConnector", profiles=["load-failure"], steps=None, runs=1, shrink_tries=0)

    fails_loads()  # with its first engine, vLLM removes the handlers that were added before
    said: list[logging.LogRecord] = []
    heard = logging.Handler()
    heard.emit = said.append  # type: ignore[assignment,method-assign]
    logging.getLogger("vllm").addHandler(heard)
    try:
        fails_loads()
        assert any("Recovered from KV load failure" in each.getMessage() for each in said), (
            "it does without the command"
        )
        said.clear()
        arguments = ["OffloadConnector", "--profile", "load-failure", "--runs", "1", "-o", str(tmp_path)]
        CliRunner().invoke(main, ["check", *arguments])
    finally:
        logging.getLogger("vllm").removeHandler(heard)
    assert said == []


def test_fakes_copy_by_the_plan_and_show_what_a_wrong_plan_does() -> None:
    """The store of a block that was given to another request is found in who loads it."""
    checked = check(
        "Faulty:block-reuse:OffloadingConnector",
        profiles=["preemption-storm"],
        seed=2,
        steps=None,
        runs=1,
        shrink_tries=0,
    )
    assert "block-reuse" in {found.failure.what for found in checked.found}
    texts = [found.failure.text for found in checked.found if found.failure.kind == "bytes"]
    assert len(texts) == 1
    assert "it holds the KV of token" in texts[0]
    assert f"They copied by its plans: {checked.blocks_compared:,} blocks compared" in report.as_text(checked)


@pytest.mark.parametrize(
    ("rounds", "hits", "blocks"), [(1, 50, 10_000), pytest.param(3, 500, 200_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", IN_TURN)
def test_a_correct_connector_passes_its_profiles(name: str, rounds: int, hits: int, blocks: int) -> None:
    """vLLM 0.32's OffloadingConnector has one fault, of a load in the first step after a reset (`test_faults_of_vllm`)."""
    profiles = IN_TURN[name] if rounds == 1 else tuple(PROFILES)
    checked = check(name, profiles=profiles, steps=None, runs=rounds * len(profiles), seed=100, shrink_tries=0)
    known = {"rule: failed-call"} if name == "OffloadingConnector" else set()
    assert [each.failure for each in checked.found if each.failure.id not in known] == []
    assert set(checked.trials) == set(profiles)
    assert not checked.refused
    assert checked.hits > hits
    assert checked.blocks_compared > blocks


def test_what_is_stored_a_step_later_is_found_again_after_a_reset() -> None:
    """With speculation, a prompt's last chunk is stored when the next step shows that it is computed."""
    connector = configuration("OffloadConnector", {"chunk_size": 256})
    assert play(scenario_of("spec-decode", 301), connector, observed=True).observations == []


def test_the_same_seed_gives_the_same_scenarios_and_others_give_others() -> None:
    for profile in PROFILES:
        assert scenario_of(profile, 3) == scenario_of(profile, 3) != scenario_of(profile, 4)
        assert Scenario.from_dict(json.loads(json.dumps(scenario_of(profile, 3).as_dict()))) == scenario_of(profile, 3)


@pytest.fixture(scope="module")
def stale() -> Checked:
    return check(
        STALE,
        profiles=["chunked-prefill", "preemption-storm"],
        steps=None,
        runs=2,
        config={"chunk_size": 256},
        stop_at_first=True,
        shrink_tries=TRIES,
    )


def test_what_is_found_is_made_small_and_still_fails(stale: Checked) -> None:
    (found,) = stale.found
    assert found.failure.id == "rule: stale-lookup"
    assert len(found.small.scenario.arrivals) <= 5 < len(found.original.arrivals)
    assert "the length matched at L1, from which nothing was subtracted" in found.failure.text
    assert found.small.played.steps < 60


def test_the_trace_shows_it_and_the_test_fails_with_the_fault_and_passes_without(
    stale: Checked, tmp_path: Path
) -> None:
    written = {path.name: path for path in report.write(stale, tmp_path)}
    (test,) = (path for name, path in written.items() if name.startswith("test_stale_lookup_"))
    assert set(written) == {"stale-lookup.jsonl", test.name, "report.json"}
    assert "stale-lookup" in {finding.rule for finding in audit([written["stale-lookup.jsonl"]]).findings}
    failing = run_pytest(test, {})
    assert failing.returncode == 1, failing.stdout
    assert "rule: stale-lookup" in failing.stdout
    mended = run_pytest(test, {"KVTRAIL_CONNECTOR": "OffloadConnector"})
    assert mended.returncode == 0, mended.stdout
    again = tmp_path / "again.py"
    asked = CliRunner().invoke(main, ["minimize", str(written["stale-lookup.jsonl"]), "--pytest", str(again)])
    assert (asked.exit_code, again.read_text()) == (0, test.read_text()), asked.output
    assert "the test that was written together with this trace" in asked.output


def test_the_reports_say_the_same(stale: Checked, tmp_path: Path) -> None:
    report.write(stale, tmp_path)
    text = report.as_text(stale)
    (failure,) = json.loads((tmp_path / "report.json").read_text())["failures"]
    for said in (AGAIN, stale.found[0].failure.text):
        assert said in text
        assert said in (failure["again"], failure["text"])
    assert Scenario.from_dict(failure["scenario"]) == stale.found[0].small.scenario


def test_the_command_that_the_report_names_repeats_the_failure_exactly(
    stale: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many tries to make it smaller, which take most of the time."""
    assert check.__kwdefaults__ is not None
    monkeypatch.setitem(check.__kwdefaults__, "shrink_tries", TRIES)
    program, *arguments = shlex.split(AGAIN)
    assert program == "kvtrail"
    run = CliRunner().invoke(main, [*arguments, "--json", "-o", str(tmp_path)])
    assert run.exit_code == 1, run.output
    (failure,) = json.loads(run.stdout)["failures"]
    assert Scenario.from_dict(failure["scenario"]) == stale.found[0].small.scenario


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["NoSuchConnector"], "vLLM knows no connector 'NoSuchConnector'"),
        (["no_such_module:Thing"], "No module named 'no_such_module'"),
        (["UntracedOffloadConnector"], "no lookup was recorded"),
        (["OffloadConnector", "--config", '{"chunk_size": 33}'], "chunk_size"),
        (["OffloadConnector", "--config", "{"], "it is no JSON"),
        (["OffloadConnector", "--profile", "calm"], "'calm' is not one of"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["check", *arguments, "--runs", "1", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_where_python_swallows_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """As in a weak reference's callback, in which an exception is only printed."""
    runs = []

    def run(*arguments: Any, **named: Any) -> Any:
        runs.append(arguments)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        return run_one(*arguments, **named)

    monkeypatch.setattr("kvtrail.connector.simulate.check.session.run", run)
    before = signal.getsignal(number)
    arguments = ["OffloadConnector", "--fake-workers", "--profile", "retry", "--runs", "5", "-o", str(tmp_path)]
    result = CliRunner().invoke(main, ["check", *arguments])
    assert (result.exit_code, len(runs)) == (code, 1), result.output
    assert "Interrupted; this is what was seen until then." in result.output
    assert signal.getsignal(number) is before


def test_a_failure_that_is_being_shrunk_is_reported_when_the_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = "kvtrail.connector.simulate.check.session"
    monkeypatch.setattr(f"{session}.shrunk", lambda *_, **named: signal.raise_signal(signal.SIGTERM))
    arguments = ["Faulty:stale-lookup:OffloadConnector", "--profile", "retry", "--runs", "1", "-o", str(tmp_path)]
    result = CliRunner().invoke(main, ["check", *arguments])
    assert result.exit_code == 143
    assert "stale-lookup" in result.output
    assert (tmp_path / "stale-lookup.jsonl").exists()


def test_ctrl_c_before_the_first_run_says_that_nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why_fake = "kvtrail.connector.simulate.check.session.why_fake"
    monkeypatch.setattr(why_fake, lambda tested: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(main, ["check", "OffloadConnector", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "Nothing ran." in result.output
    assert "There was no lookup" in result.output
    assert "workers" not in result.output


def test_profiles_that_a_connector_refuses_are_named_once_and_are_no_failure(tmp_path: Path) -> None:
    """ExampleConnector has no `SupportsHMA`."""
    profiles = [part for name in ("groups", "states") for part in ("--profile", name)]
    result = CliRunner().invoke(main, ["check", "ExampleConnector", *profiles, "--runs", "2", "-o", str(tmp_path)])
    assert result.exit_code == INCONCLUSIVE
    (line,) = [line for line in result.output.splitlines() if line.startswith("Not driven")]
    assert line.startswith(
        "Not driven: groups, states: ValueError: Connector TracedExampleConnector does not support HMA"
    )
    assert "Nothing of what was asked for can be driven with this connector." in result.output
    beside = check("ExampleConnector", profiles=["groups", "retry"], steps=None, runs=1, shrink_tries=0)
    assert (list(beside.refused), list(beside.trials)) == (["groups"], ["retry"])


def test_our_connector_loads_both_ways() -> None:
    """In turn; recurrent states it loads between steps, unless a setting forbids it."""
    drawn = [varied("OffloadConnector", in_turn("async", turn)).get("load_async", "not set") for turn in range(2)]
    assert {*drawn} == {True, "not set"}


def test_each_value_of_a_setting_has_its_turn() -> None:
    chosen = [in_turn("room", turn) for turn in range(12)]
    first, second = ([choose("abc") for choose in chosen] for _ in range(2))
    assert all(sorted(values[n : n + 3]) == ["a", "b", "c"] for values in (first, second) for n in range(0, 12, 3))
    assert first != second, "settings do not change together"
    assert first[:3] != first[3:6] or first[3:6] != first[6:9], "not always in one order"
    assert first == [in_turn("room", turn)("abc") for turn in range(12)], "by profile and turn alone"


def test_loads_fail_only_where_that_can_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def run(tested: ConnectorUnderTest, scenario: Scenario) -> Any:
        given.append(scenario.workers.load_failures)
        return run_one(tested, scenario)

    monkeypatch.setattr("kvtrail.connector.simulate.check.session.run", run)
    for connector in ("OffloadConnector", "SimpleCPUOffloadConnector"):
        check(connector, profiles=["load-failure"], steps=None, runs=1, shrink_tries=0)
    assert [share > 0 for share in given] == [True, False]
    silent, heard = {"kv_connector": "SimpleCPUOffloadConnector"}, {"kv_connector": "OffloadConnector"}
    assert not ConnectorUnderTest("MultiConnector", {"connectors": [silent, silent]}).loads_may_fail
    assert ConnectorUnderTest("MultiConnector", {"connectors": [silent, heard]}).loads_may_fail


LAGGING = {"chunk": 32, "slots": 400, "apart": True, "lag": 2}


def test_preemptions_by_a_reset_are_not_in_vain() -> None:
    """The blocks that a reset has freed are held again by loads, in the step that reports the preemptions."""
    checked = check(
        "planted.chunk_store:ChunkStore", config=LAGGING, profiles=["mixed"], seed=3, steps=None, runs=1, shrink_tries=0
    )
    assert checked.reached["preempt/any"] > 20
    assert [found.failure for found in checked.found] == []


def test_a_fence_that_is_forgotten_breaks_what_it_is_for() -> None:
    """Nothing shows the stores of this connector, and the bytes show what they have read."""
    checked = check(
        "planted.deep_bugs:FenceForgotten",
        config=LAGGING,
        profiles=["mixed"],
        steps=None,
        runs=1,
        shrink_tries=0,
        stop_at_first=True,
    )
    said = conformance.as_dict(suite.asked_of("planted.deep_bugs:FenceForgotten", config=LAGGING), checked)
    failed = {each["id"] for each in said["requirements"] if each["result"] == "failed"}
    assert "core.store.read-before-reuse" in failed


@pytest.mark.parametrize("late", [True, False])
def test_a_load_that_is_lost_in_the_step_after_a_reset_is_found(late: bool) -> None:
    """Only a reset of running requests preempts one and loads for it again in the same step."""
    checked = check(
        "planted.deep_bugs:LoadDroppedWithThePreempted",
        config={"late": late},
        profiles=["conversation", "mixed"],
        steps=None,
        runs=6,
        shrink_tries=0,
        stop_at_first=True,
    )
    assert BYTES in {found.failure.kind for found in checked.found}


@pytest.mark.parametrize(
    ("name", "profile", "wrong"),
    [
        ("OffloadConnector", "failed-requests", False),
        ("planted.host_cache:HostCache", "failed-requests", False),
        ("planted.deep_bugs:KeepsWhatAFailedRequestStored", "failed-requests", True),
        ("planted.deep_bugs:KeepsWhatAFailedRequestStored", "load-failure", False),
    ],
)
def test_what_a_failed_request_has_stored_is_no_kv(name: str, profile: str, wrong: bool) -> None:
    """With vLLM's default policy a request ends when a load of it fails, and with it what the connector knew of it."""
    checked = check(name, profiles=[profile], steps=None, runs=2, shrink_tries=0)
    assert checked.reached["load/failed"] > 5
    assert {found.failure.kind for found in checked.found} == ({HITS, BYTES} if wrong else set())


def test_nothing_recorded_is_an_error_of_its_own() -> None:
    with pytest.raises(NothingRecorded):
        check("UntracedOffloadConnector", steps=None, runs=1)


def test_each_turn_of_a_profile_has_a_new_seed() -> None:
    often = Checked(connector="", seed=5, profiles=("a", "b", "a", "c"), refused={"c": "it cannot"})
    assert [*islice(turns(often), 6)] == [("a", 5), ("b", 5), ("a", 6), ("a", 7), ("b", 6), ("a", 8)]


def test_what_finds_most_comes_often_and_what_a_connector_lacks_takes_no_steps() -> None:
    driven, not_driven = features.profiles("ExampleConnector", None, features.claimed("ExampleConnector", {}))
    assert driven[: len(OFTEN) - 2] == tuple(each for each in OFTEN if each != "load-failure")
    assert driven.count("combined") == 3
    assert {
        "groups",
        "states",
        "block-sizes",
        "load-failure",
        "failed-requests",
        "handoff",
        "kv-events",
    } <= not_driven.keys()
    assert {*driven} == PROFILES.keys() - not_driven.keys()
    checked = check("ExampleConnector", steps=1, shrink_tries=0)
    assert checked.refused == not_driven
    assert checked.profiles == driven


def test_the_command_knows_the_profiles() -> None:
    (option,) = (each for each in command.params if each.name == "profiles")
    assert isinstance(option.type, click.Choice)
    assert [*PROFILES, *PAIR_PROFILES] == list(option.type.choices)


def test_minimal_finds_what_is_needed_and_nothing_else() -> None:
    assert minimal(range(50), lambda kept: {3, 30, 31} <= set(kept)) == [3, 30, 31]
    assert minimal([1, 2], lambda kept: True) == []


def test_deaths_are_of_one_kind_whatever_their_numbers() -> None:
    one = without_numbers("AssertionError: Mismatch in tokens to load: 256 vs 336 for request r-12")
    assert one == without_numbers("AssertionError: Mismatch in tokens to load: 64 vs 8 for request r-3")


def test_no_connector_is_accused_of_failed_blocks_that_vllm_itself_keeps() -> None:
    """With this seed, a request is preempted after a failed load within its step, before it has computed the blocks again.
    vLLM keeps them in its prefix cache and would give them back to the request as computed."""
    checked = check("OffloadConnector", profiles=["load-failure"], runs=1, steps=None, seed=81250001, shrink_tries=0)
    assert [found.failure.id for found in checked.found] == []
    assert checked.reached["load/failed"] > 0
