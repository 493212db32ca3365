"""Recording never breaks the engine: what it does not understand is logged, and the connector goes on unrecorded."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from memory import MemoryTransport, a_recorder, a_request
from processes import SLOW_S

from kvtrail.connector.known.probe import Moved, Planned, Probe, Seen
from kvtrail.connector.settings import Guard
from kvtrail.connector.tracing.instrumentation import ContractBreach, Instrumentation
from kvtrail.tracer.model.events import Store

ANSWER = (256, False)
REQUEST = "cmpl-1-0-0123abcd"


def test_a_scheduler_output_of_another_vllm_stops_the_recording_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = MemoryTransport()
    instrumentation = Instrumentation(a_recorder(transport), name="Some")
    with caplog.at_level(logging.ERROR):
        instrumentation.step_built(None, SimpleNamespace(renamed=()), None)
        instrumentation.step_built(None, SimpleNamespace(renamed=()), None)
        instrumentation.looked_up(None, a_request(num_tokens=700), 0, 1, ANSWER)
    logged = [r.getMessage() for r in caplog.records if "kvtrail" in r.getMessage()]
    assert logged == ["kvtrail: a call of Some could not be recorded; nothing more is recorded of it"]
    assert transport.lookups() == []


class Broken(Probe):
    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        raise AttributeError("another version")

    def loads(self, connector: Any) -> Any:
        raise AttributeError("another version")


def test_a_probe_that_fails_is_switched_off_and_the_recording_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation = Instrumentation(recorder, name="Some", probe=Broken())
    with caplog.at_level(logging.ERROR):
        instrumentation.looked_up(None, a_request(num_tokens=700), 0, 1, ANSWER)
        instrumentation.looked_up(None, a_request(num_tokens=700), 0, 1, ANSWER)
        instrumentation.loaded(SimpleNamespace(_connector_metadata=None), 0)
    recorder.close(SLOW_S)
    assert len([r for r in caplog.records if "the probe of Some failed" in r.getMessage()]) == 1
    recorded = [e.numbers() for e in transport.lookups()]
    assert [(numbers["returned"], numbers.get("matched"), numbers.get("cached")) for numbers in recorded] == [
        (256, None, None)
    ] * 2


@pytest.mark.parametrize("what", ["probe", "step"])
def test_what_could_not_be_recorded_is_missing_in_the_numbers(what: str) -> None:
    """The tracer must not take silence for fact: a request that was open when recording failed is incomplete."""
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    first, second = Instrumentation(recorder, name="Some", probe=Broken()), Instrumentation(recorder, name="Other")
    with transport.held_up():
        second.looked_up(None, request, 0, 1, ANSWER)
        if what == "probe":
            first.loaded(SimpleNamespace(_connector_metadata=None), 0)
        else:
            first.step_built(None, SimpleNamespace(renamed=()), None)
        second.looked_up(None, request, 0, 3, ANSWER)
    recorder.close(SLOW_S)
    assert [(e.sequence, e.request_sequence) for e in transport.lookups()] == [(0, 0), (2, 2)]
    assert recorder.dropped == 0, "nothing came too late or too fast"


class Copying(Probe):
    """One that sees a store of every request, planned and carried out."""

    def stepped(self, connector: Any, metadata: Any) -> Seen:
        return Seen(stores=[Planned(REQUEST, 0, 256, (1, 2))])

    def stores(self, connector: Any) -> list[Moved]:
        return [Moved(REQUEST, 0, 256, 2, None)]


def test_callers_traces_are_passed_to_workers_in_the_metadata() -> None:
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    transport = MemoryTransport()
    ours, theirs = a_recorder(MemoryTransport()), a_recorder(transport)
    scheduler = Instrumentation(ours, probe=Copying())
    scheduler.request_started(a_request(REQUEST, trace_headers=headers, num_tokens=10))
    nothing_new = SimpleNamespace(
        scheduled_new_reqs=[], preempted_req_ids=None, scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set())
    )
    note, slots = SimpleNamespace(), object()
    scheduler.step_built(None, nothing_new, slots)  # cannot carry them, and that is no error
    scheduler.step_built(None, nothing_new, note)
    Instrumentation(theirs, probe=Copying()).stored(SimpleNamespace(_connector_metadata=note), 0)
    theirs.close(SLOW_S)
    ours.close(SLOW_S)
    assert [e.trace_id for e in transport.events() if isinstance(e, Store)] == ["0af7651916cd43dd8448eb211c80319c"]


class Knowing(Probe):
    """Knows what every lookup has matched."""

    def __init__(self, matched: int | None) -> None:
        self.matched = matched

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return self.matched, None


@pytest.mark.parametrize(
    ("total", "computed", "matched", "returned", "is_async", "breaks"),
    [
        (749, 336, 256, 256, False, True),
        (749, 336, 256, 0, False, False),
        (749, 0, 256, 256, False, False),
        (749, 0, None, None, False, False),
        (512, 256, 512, 256, False, True),
        (512, 256, 512, 256, True, False),
        (512, 256, 512, 255, False, False),
        (512, 256, None, 257, True, True),
        (512, 256, None, -1, True, True),
    ],
)
def test_what_the_guard_refuses(
    total: int, computed: int, matched: int | None, returned: int | None, is_async: bool, breaks: bool
) -> None:
    answer = (returned, is_async)
    request, probe = a_request(num_tokens=total), Knowing(matched)
    observing, healing, raising = (Instrumentation(probe=probe, guard=guard) for guard in Guard)
    assert observing.looked_up(None, request, computed, 1, answer) == answer
    assert healing.looked_up(None, request, computed, 1, answer) == ((0, False) if breaks else answer)
    with pytest.raises(ContractBreach, match="new tokens for request") if breaks else nullcontext():
        assert raising.looked_up(None, request, computed, 1, answer) == answer
