"""Which requests a heartbeat names: those without an event since the last one, in turn, within a budget."""

from __future__ import annotations

from types import SimpleNamespace

from memory import MemoryTransport, a_recorder
from processes import SLOW_S

from kvtrail.connector.recording import idle_requests
from kvtrail.connector.recording.idle_requests import IdleRequests
from kvtrail.tracer.events.events import Heartbeat


def test_only_those_without_an_event_since_are_named() -> None:
    requests = IdleRequests()
    assert requests.select({"a": 1, "b": 3}) is None
    assert requests.select({"a": 1, "b": 4, "new": 1}) == (("a",), (1,))
    assert requests.select({"a": 1, "b": 4}) == (("b", "a"), (4, 1)), "a had its turn"
    assert requests.select({}) is None


def test_all_have_their_turn_and_the_budget_holds() -> None:
    requests, events = IdleRequests(), {f"request-{n}": n for n in range(300)}
    requests.select(events)
    reported = [requests.select(events) for _ in range(10)]
    assert {len(named) for named, _ in filter(None, reported)} == {idle_requests.MAX_NAMED}
    first = {name for named, _ in filter(None, reported[:5]) for name in named}
    assert first == {f"request-{n}" for n in range(300)}
    assert all(int(name.split("-")[1]) == count for each in reported if each for name, count in zip(*each, strict=True))


def test_a_scheduler_names_open_requests_and_those_with_kept_blocks() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    requests = [SimpleNamespace(request_id=name, num_preemptions=0) for name in ("open", "kept", "ended")]
    for request in requests:
        context = recorder.contexts.of(request)
        recorder.record("kv.request.start", b"", context, 0, 0, (1, *(None,) * 7))
        if request.request_id != "open":
            recorder.contexts.end(context, delayed=request.request_id == "kept")
    assert recorder._idle.select(recorder.contexts.events()) is None
    recorder.steps = 1
    recorder._heartbeat_s = float("-inf")
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    beats = [event for event in transport.events() if isinstance(event, Heartbeat)]
    reported = [dict(zip(beat.idle_requests or (), beat.idle_events or (), strict=True)) for beat in beats]
    assert {"open": 1, "kept": 1} in reported
