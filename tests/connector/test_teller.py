"""Telling never breaks the engine: what it does not understand is logged, and the connector goes on untold."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from memory import Memory
from test_recorder import a_recorder, a_request, lookups

from kvtrail.connector.known.probe import Moved, Planned, Probe, Seen
from kvtrail.connector.tracing.instrumentation import Teller
from kvtrail.tracer.model.events import Store

ANSWER = (256, False)
REQUEST = "cmpl-1-0-0123abcd"


def test_a_scheduler_output_of_another_vllm_stops_the_telling_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Memory()
    teller = Teller(a_recorder(line), name="Some")
    with caplog.at_level(logging.ERROR):
        teller.step(None, SimpleNamespace(renamed=()), None)
        teller.step(None, SimpleNamespace(renamed=()), None)
        teller.lookup(None, a_request(num_tokens=700), 0, 1, ANSWER)
    told = [r.getMessage() for r in caplog.records if "kvtrail" in r.getMessage()]
    assert told == ["kvtrail: Some could not be told; nothing more is recorded of it"]
    assert lookups(line) == []


class Broken(Probe):
    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        raise AttributeError("another version")

    def loads(self, connector: Any) -> Any:
        raise AttributeError("another version")


def test_a_probe_that_fails_is_switched_off_and_the_telling_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    line = Memory()
    recorder = a_recorder(line)
    teller = Teller(recorder, name="Some", probe=Broken())
    with caplog.at_level(logging.ERROR):
        teller.lookup(None, a_request(num_tokens=700), 0, 1, ANSWER)
        teller.lookup(None, a_request(num_tokens=700), 0, 1, ANSWER)
        teller.loaded(SimpleNamespace(_connector_metadata=None), 0)
    recorder.close()
    assert len([r for r in caplog.records if "the probe of Some failed" in r.getMessage()]) == 1
    told = [e.numbers() for e in lookups(line)]
    assert [(numbers["returned"], numbers.get("matched"), numbers.get("cached")) for numbers in told] == [
        (256, None, None)
    ] * 2


@pytest.mark.parametrize("what", ["probe", "step"])
def test_what_could_not_be_told_is_missing_in_the_numbers(what: str) -> None:
    """The tracer must not take silence for fact: a request that was open when the telling failed is incomplete."""
    line = Memory()
    recorder, request = a_recorder(line), a_request(num_tokens=700)
    first, second = Teller(recorder, name="Some", probe=Broken()), Teller(recorder, name="Other")
    with line.held_up():
        second.lookup(None, request, 0, 1, ANSWER)
        if what == "probe":
            first.loaded(SimpleNamespace(_connector_metadata=None), 0)
        else:
            first.step(None, SimpleNamespace(renamed=()), None)
        second.lookup(None, request, 0, 3, ANSWER)
    recorder.close()
    assert [(e.sequence, e.request_sequence) for e in lookups(line)] == [(0, 0), (2, 2)]
    assert recorder.dropped == 0, "nothing came too late or too fast"


class Copying(Probe):
    """One that sees a store of every request, planned and carried out."""

    def stepped(self, connector: Any, metadata: Any) -> Seen:
        return Seen(stores=[Planned(REQUEST, 0, 256, (1, 2))])

    def stores(self, connector: Any) -> list[Moved]:
        return [Moved(REQUEST, 0, 256, 2, None)]


def test_callers_traces_are_handed_to_workers_where_the_metadata_takes_a_note() -> None:
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    line = Memory()
    ours, theirs = a_recorder(Memory()), a_recorder(line)
    scheduler = Teller(ours, probe=Copying())
    scheduler.begun(a_request(REQUEST, trace_headers=headers, num_tokens=10))
    nothing_new = SimpleNamespace(
        scheduled_new_reqs=[], preempted_req_ids=None, scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set())
    )
    note, slots = SimpleNamespace(), object()
    scheduler.step(None, nothing_new, slots)  # takes no note, and does not mind
    scheduler.step(None, nothing_new, note)
    Teller(theirs, probe=Copying()).stored(SimpleNamespace(_connector_metadata=note), 0)
    theirs.close()
    ours.close()
    assert [e.trace_id for e in line.events() if isinstance(e, Store)] == ["0af7651916cd43dd8448eb211c80319c"]
