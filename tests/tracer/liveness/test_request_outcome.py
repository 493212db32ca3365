"""The outcome of a request and the impact of a finding, by its account's words and its engine's state."""

from __future__ import annotations

import pytest

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.semconv import CUT_OFF
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.request_outcome import described, impact_of, of_ending, outcome_of
from kvtrail.tracer.model.outcomes import Impact, Outcome

RUNNING, DIED, LOST_CONTACT = EngineState.RUNNING, EngineState.DIED, EngineState.LOST_CONTACT


@pytest.mark.parametrize(
    ("status", "reason", "engine", "outcome"),
    [
        ("finished", "stopped", DIED, Outcome.FINISHED),
        ("finished", "aborted", RUNNING, Outcome.ABORTED),
        ("finished", "error", RUNNING, Outcome.FAILED),
        ("failed", CUT_OFF, DIED, Outcome.FAILED),
        ("abandoned", CUT_OFF, RUNNING, Outcome.LOST),
        ("abandoned", semconv.LOST_CONTACT, LOST_CONTACT, Outcome.LOST_CONTACT),
        ("abandoned", semconv.LOST_CONTACT, EngineState.REPLACED, Outcome.LOST),
        ("loading", None, LOST_CONTACT, Outcome.LOST_CONTACT),
        ("loading", None, DIED, Outcome.LOST),
        ("loading", None, EngineState.NOT_OBSERVED, Outcome.RUNNING),
    ],
)
def test_the_outcome_of_a_request(status: str, reason: str | None, engine: EngineState, outcome: Outcome) -> None:
    assert outcome_of(status, reason, engine) is outcome


def test_only_what_depends_on_the_engine_is_left_open_by_an_ending() -> None:
    decided = {outcome: {of_ending(outcome, engine) for engine in EngineState} for outcome in Outcome}
    assert decided.pop(Outcome.RUNNING) == {Outcome.RUNNING, Outcome.LOST, Outcome.LOST_CONTACT}
    assert decided.pop(Outcome.LOST_CONTACT) == {Outcome.LOST, Outcome.LOST_CONTACT}
    assert decided == {outcome: {outcome} for outcome in decided}


def test_how_a_request_ended_in_words() -> None:
    assert described("failed", None, "AssertionError: 3") == "a call about it raised AssertionError: 3"
    assert described("finished", "stopped", None) == "it ended: stopped"
    assert described("abandoned", CUT_OFF, None) == "its engine ended before it did"
    assert described("abandoned", semconv.LOST_CONTACT, None) == "contact with its engine was lost"
    assert described("running", None, None) == "the recording ends before it does"


def test_the_impact_of_a_finding() -> None:
    def impact(
        outcome: Outcome | None, *, rule: str = "stale-lookup", healed: int = 0, is_cause: bool = False
    ) -> Impact:
        return impact_of(outcome, rule=rule, healed=healed, count=2, is_cause=is_cause)

    assert impact(Outcome.FAILED, healed=2) is Impact.HEALED
    assert impact(Outcome.FAILED, healed=1) is Impact.FAILED
    assert impact(Outcome.LOST, is_cause=True) is Impact.DIED
    assert impact(Outcome.LOST) is Impact.LOST
    assert impact_of(
        Outcome.LOST, rule="store-gap", healed=0, count=1, is_cause=False, was_stopped=True
    ) is Impact.NO_HARM  # fmt: skip
    for outcome, of_wrong_output in ((Outcome.FINISHED, Impact.NOT_KNOWN), (Outcome.FAILED, Impact.FAILED)):
        assert of_wrong_output is impact_of(
            outcome, rule="stale-handoff", severity="wrong output", healed=0, count=1, is_cause=False
        )
    assert impact(Outcome.LOST_CONTACT) is impact(Outcome.FINISHED) is impact(None) is Impact.NO_HARM
    assert impact(Outcome.FINISHED, rule="byte-drift") is Impact.WRONG_KV
