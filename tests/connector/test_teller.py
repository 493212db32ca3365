"""Telling never breaks the engine: what it does not understand is logged, and the connector goes on untold."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from memory import Memory
from test_recorder import a_recorder, a_request, lookups

from connector.probes import Probe
from connector.teller import Teller
from tracer.semconv import Kind

VALUES = (700, 0, 256, 256, False, None, None, None)


def test_a_scheduler_output_of_another_vllm_stops_the_telling_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Memory()
    teller = Teller(a_recorder(line), name="Some")
    with caplog.at_level(logging.ERROR):
        teller.step(None, SimpleNamespace(renamed=()), None)
        teller.step(None, SimpleNamespace(renamed=()), None)
        teller.lookup(a_request(), 1, 2, VALUES)
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
        assert teller.see(None, None) == (None, None, None)
        assert teller.see(None, None) == (None, None, None)
        teller.loaded(SimpleNamespace(_connector_metadata=None), 0)
        teller.lookup(a_request(), 1, 2, VALUES)
    recorder.close()
    assert len([r for r in caplog.records if "the probe of Some failed" in r.getMessage()]) == 1
    assert len(lookups(line)) == 1


@pytest.mark.parametrize("what", ["probe", "step"])
def test_what_could_not_be_told_is_missing_in_the_numbers(what: str) -> None:
    """The tracer must not take silence for fact: a request that was open when the telling failed is incomplete."""
    line = Memory()
    recorder, request = a_recorder(line), a_request()
    first, second = Teller(recorder, name="Some", probe=Broken()), Teller(recorder, name="Other")
    second.lookup(request, 1, 2, VALUES)
    if what == "probe":
        first.see(None, None)
    else:
        first.step(None, SimpleNamespace(renamed=()), None)
    second.lookup(request, 3, 4, VALUES)
    recorder.close()
    assert [(e.sequence, e.request_sequence) for e in lookups(line)] == [(0, 0), (2, 2)]


def test_callers_traces_are_handed_to_workers_where_the_metadata_takes_a_note() -> None:
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    ours = a_recorder(Memory())
    theirs = Memory()
    request = a_request(trace_headers=headers, num_tokens=10)
    scheduler, worker_recorder = Teller(ours), a_recorder(theirs)
    scheduler.begun(request)
    new = SimpleNamespace(req_id=request.request_id, num_computed_tokens=0, block_ids=([1],))
    output = SimpleNamespace(
        preempted_req_ids=None,
        num_scheduled_tokens={request.request_id: 10},
        scheduled_new_reqs=[new],
        scheduled_spec_decode_tokens={},
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
    )
    note, slots = SimpleNamespace(), object()
    scheduler.step(None, output, slots)  # takes no note, and does not mind
    scheduler.step(None, output, note)
    Teller(worker_recorder).loaded(SimpleNamespace(_connector_metadata=note), 0)
    worker_recorder.record(Kind.LOOKUP.value, b"", worker_recorder.context_of_id(request.request_id), 1, 2, VALUES)
    worker_recorder.close()
    ours.close()
    assert [e.trace_id for e in lookups(theirs)] == ["0af7651916cd43dd8448eb211c80319c"]
