"""The states of an engine: what leads to each, and what each gives way to."""

from __future__ import annotations

from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.liveness.engine import (
    CONTACT_NS,
    FINAL,
    TRANSITIONS,
    EngineState,
    Evidence,
    Launch,
    at_present,
    supersedes,
    transition,
)

ERROR = "AssertionError: Mismatch"
KILLED, KILLED_IN_CALL, RAISED = (
    Evidence(is_closed=True, ended_by=NO_END_RECORD, lost=3),
    Evidence(is_closed=True, ended_by=NO_END_RECORD, raised=ERROR, lost=0),
    Evidence(raised=ERROR, sends_heartbeats=True, is_replaced=True),
)
SEEN = [
    Evidence(is_closed=True, ended_by=ERROR),
    KILLED_IN_CALL,
    Evidence(is_closed=True, ended_by=NO_END_RECORD, lost=0),
    KILLED,
    Evidence(is_closed=True, raised=ERROR),
    Evidence(is_closed=True, lost=2),
    Evidence(reports=True, sends_heartbeats=True, raised=ERROR, is_replaced=True),
    Evidence(reports=True),
    RAISED,
    Evidence(sends_heartbeats=True, is_replaced=True),
    Evidence(heartbeats_due=False),
    Evidence(sends_heartbeats=True),
]
"""For each transition of the table, in its order, evidence that leads to it."""


def test_each_cause_leads_to_its_state() -> None:
    assert [transition(seen) for seen in SEEN] == [*TRANSITIONS]
    assert {each.state for each in TRANSITIONS} == set(EngineState)


def test_what_a_call_raised_says_more_than_that_the_process_has_gone() -> None:
    assert KILLED_IN_CALL.exception == RAISED.exception == ERROR
    assert KILLED.exception == NO_END_RECORD
    assert Evidence(ended_by="KeyError: 3", raised=ERROR).exception == "KeyError: 3"


def test_only_its_scheduler_takes_back_what_an_engine_reported() -> None:
    for final in FINAL:
        assert not supersedes(EngineState.LOST_CONTACT, final, from_scheduler=False)
        assert supersedes(EngineState.RUNNING, final, from_scheduler=True)
        assert all(supersedes(other, final, from_scheduler=False) for other in FINAL)
    assert supersedes(EngineState.RUNNING, EngineState.LOST_CONTACT, from_scheduler=False)


def test_a_stored_launch_as_it_is_now() -> None:
    def now(state: EngineState, *, is_heard: bool = False, heard_ns: int = 0) -> tuple[EngineState, int | None, int]:
        launch = Launch(engine="e", launch="l", state=state, began_ns=0, ended_ns=5, lost=1)
        seen = at_present(
            launch, is_heard=is_heard, heard_ns=heard_ns, note_every_ns=10, open_requests=4, now_ns=CONTACT_NS + 20
        )
        return seen.state, seen.ended_ns, seen.lost

    assert now(EngineState.DIED, is_heard=True) == (EngineState.DIED, 5, 1)
    assert now(EngineState.LOST_CONTACT, is_heard=True) == (EngineState.RUNNING, None, 0)
    assert now(EngineState.REPLACED) == (EngineState.REPLACED, 5, 1)
    assert now(EngineState.RUNNING, heard_ns=10) == (EngineState.NOT_OBSERVED, 5, 1)
    assert now(EngineState.RUNNING, heard_ns=9) == (EngineState.LOST_CONTACT, 9, 4)
