"""Recording never breaks the engine, and one odd object costs one event: what is not understood is counted and logged."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from memory import MemoryTransport, a_recorder, a_request
from processes import SLOW_S

from kvtrail.connector.known.probe import Moved, Planned, Probe, Seen
from kvtrail.connector.recording.exceptions import message
from kvtrail.connector.settings import Guard
from kvtrail.connector.tracing.instrumentation import MAX_PROBE_FAILURES
from kvtrail.connector.tracing.scheduler_side import ContractBreach, SchedulerInstrumentation
from kvtrail.connector.tracing.worker_side import WorkerInstrumentation
from kvtrail.tracer.events.events import Heartbeat, RequestEnd, Store
from kvtrail.tracer.events.messages import MOST
from kvtrail.tracer.events.semconv import Kind

ANSWER = (256, False)
REQUEST = "cmpl-1-0-0123abcd"


def last_heartbeat(transport: MemoryTransport) -> Heartbeat:
    return [event for event in transport.events() if isinstance(event, Heartbeat)][-1]


def test_a_scheduler_output_of_another_vllm_costs_its_steps_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation = SchedulerInstrumentation(recorder, name="Some")
    with caplog.at_level(logging.ERROR):
        instrumentation.on_step(None, SimpleNamespace(renamed=()), None)
        instrumentation.on_step(None, SimpleNamespace(renamed=()), None)
        instrumentation.on_lookup(None, a_request(num_tokens=700), 0, 1, ANSWER)
    recorder.close(SLOW_S)
    logged = [r.getMessage() for r in caplog.records if "kvtrail" in r.getMessage()]
    assert logged == [
        "kvtrail: an event of Some could not be recorded (kv.schedule); the heartbeats count the failures. The engine is not"
        " affected."
    ]
    assert len(transport.lookups()) == 1
    assert last_heartbeat(transport).recorder_unrecorded == ("kv.schedule:2",)


def test_one_odd_request_costs_one_event() -> None:
    """An attribute that is missing once: its request has a gap, the others have none, and the heartbeat counts it."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation = SchedulerInstrumentation(recorder, name="Some")
    good, odd = a_request("good", num_tokens=32), a_request("odd", num_tokens=32)
    with transport.held_up():
        instrumentation.on_lookup(None, good, 0, 1, ANSWER)
        del odd.num_preemptions
        instrumentation.on_lookup(None, odd, 0, 1, ANSWER)
        odd.num_preemptions = 0
        instrumentation.on_lookup(None, odd, 0, 1, ANSWER)
        instrumentation.on_lookup(None, good, 0, 1, ANSWER)
    recorder.close(SLOW_S)
    numbers = [(e.request, e.sequence, e.request_sequence) for e in transport.lookups()]
    assert numbers == [("good", 0, 0), ("odd", 2, 1), ("good", 3, 1)]
    assert last_heartbeat(transport).recorder_unrecorded == ("kv.lookup:1",)
    assert recorder.dropped == 0, "nothing came too late or too fast"


@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize(
    "answer", [None, (), (256,), (256, False, None), ("256", False), (object(), object()), [256, False], 7]
)
def test_an_odd_answer_reaches_vllm_as_it_is(answer: Any, guard: Guard) -> None:
    """What vLLM makes of it is vLLM's affair; recording and guarding go on."""
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    instrumentation = SchedulerInstrumentation(recorder, guard=guard)
    assert instrumentation.on_lookup(None, request, 0, 1, answer) is answer
    instrumentation.on_lookup(None, request, 0, 1, ANSWER)
    recorder.close(SLOW_S)
    assert [e.numbers()["returned"] for e in transport.lookups()][-1] == 256


def test_numbers_of_other_types_are_numbers() -> None:
    """A connector may answer with numpy's; and 1 for True must not spoil what is recorded of others later."""
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    instrumentation = SchedulerInstrumentation(recorder, probe=Knowing(numpy.int64(256)))  # type: ignore[arg-type]  # odd
    answers: list[Any] = [(numpy.int64(256), numpy.bool_(True)), (256, 1), (256, True), (None, False)]
    for answer in answers:
        assert instrumentation.on_lookup(None, request, 0, 1, answer) is answer
    recorder.close(SLOW_S)
    recorded = [e.numbers() for e in transport.lookups()]
    assert [(n.get("returned"), n["is_async"], n["matched"]) for n in recorded] == [
        (256, True, 256), (256, True, 256), (256, True, 256), (None, False, 256)
    ]  # fmt: skip


def test_an_end_with_odd_numbers_is_an_end() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation = SchedulerInstrumentation(recorder)
    request = a_request(num_tokens=700)
    instrumentation.on_request_finished(request, None)
    recorder.close(SLOW_S)
    assert [type(e) for e in transport.events() if e.request is not None] == [RequestEnd]
    assert recorder.contexts.open == {}


class Knowing(Probe):
    """Knows what every lookup has matched."""

    def __init__(self, matched: int | None) -> None:
        self.matched = matched

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        return self.matched, None


class Broken(Probe):
    asked = 0

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        self.asked += 1
        raise AttributeError("another version")

    def loads(self, connector: Any) -> Any:
        raise AttributeError("another version")


class Moody(Knowing):
    """Every third lookup it cannot answer."""

    asked = 0

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        self.asked += 1
        if self.asked % 3 == 0:
            raise AttributeError("not yet there")
        return super().lookup(connector, request)


def test_a_probe_that_fails_now_and_then_costs_those_answers() -> None:
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    instrumentation = SchedulerInstrumentation(recorder, name="Some", probe=Moody(256))
    for _ in range(3 * MAX_PROBE_FAILURES + 2):
        instrumentation.on_lookup(None, request, 0, 1, ANSWER)
    recorder.close(SLOW_S)
    matched = [e.numbers().get("matched") for e in transport.lookups()]
    assert matched == [256, 256, None] * MAX_PROBE_FAILURES + [256, 256]
    assert [e.request_sequence for e in transport.lookups()] == list(range(len(matched))), "no event is missing"
    assert last_heartbeat(transport).recorder_unrecorded == (f"probe.lookup:{MAX_PROBE_FAILURES}",)
    assert last_heartbeat(transport).recorder_probes_off is None


def test_a_probe_that_always_fails_is_switched_off_and_the_heartbeat_says_so(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    probe = Broken()
    instrumentation = SchedulerInstrumentation(recorder, name="Some", probe=probe)
    with caplog.at_level(logging.ERROR):
        for _ in range(MAX_PROBE_FAILURES + 20):
            instrumentation.on_lookup(None, request, 0, 1, ANSWER)
    recorder.close(SLOW_S)
    assert probe.asked == MAX_PROBE_FAILURES
    assert len([r for r in caplog.records if "kvtrail" in r.getMessage()]) == 3  # failed, is off, and what this costs
    recorded = [e.numbers() for e in transport.lookups()]
    assert [(numbers["returned"], numbers.get("matched"), numbers.get("cached")) for numbers in recorded] == [
        (256, None, None)
    ] * (MAX_PROBE_FAILURES + 20)
    assert last_heartbeat(transport).recorder_probes_off == ("Some",)


@pytest.mark.parametrize("what", ["probe", "step"])
def test_what_could_not_be_recorded_is_missing_in_the_numbers(what: str) -> None:
    """The tracer must not take silence for fact: a request that was open when recording failed is incomplete."""
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request(num_tokens=700)
    second = SchedulerInstrumentation(recorder, name="Other")
    with transport.held_up():
        second.on_lookup(None, request, 0, 1, ANSWER)
        if what == "probe":
            worker = WorkerInstrumentation(recorder, name="Some", probe=Broken())
            worker.on_copy(Kind.LOAD, SimpleNamespace(_connector_metadata=None), 0)
        else:
            first = SchedulerInstrumentation(recorder, name="Some", probe=Broken())
            first.on_step(None, SimpleNamespace(renamed=()), None)
        second.on_lookup(None, request, 0, 3, ANSWER)
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
    scheduler = SchedulerInstrumentation(ours, probe=Copying())
    scheduler.on_request_start(a_request(REQUEST, trace_headers=headers, num_tokens=10))
    nothing_new = SimpleNamespace(
        scheduled_new_reqs=[],
        preempted_req_ids=None,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        num_scheduled_tokens={},
    )
    note, slots = SimpleNamespace(), object()
    scheduler.on_step(None, nothing_new, slots)  # cannot carry them, and that is no error
    scheduler.on_step(None, nothing_new, note)
    WorkerInstrumentation(theirs, probe=Copying()).on_copy(Kind.STORE, SimpleNamespace(_connector_metadata=note), 0)
    theirs.close(SLOW_S)
    ours.close(SLOW_S)
    assert [e.trace_id for e in transport.events() if isinstance(e, Store)] == ["0af7651916cd43dd8448eb211c80319c"]


@pytest.mark.parametrize(
    ("total", "computed", "matched", "returned", "is_async", "breaks"),
    [
        (749, 336, 256, 256, False, True),
        (749, 336, 256, 0, False, False),
        (749, 0, 256, 256, False, False),
        (749, 0, 256, 257, True, True),
        (749, 0, None, None, False, False),
        (512, 256, 512, 256, False, True),
        (512, 256, 512, 256, True, False),
        (512, 256, 512, 255, False, False),
        (512, 256, None, 257, True, True),
        (512, 256, 640, 257, True, True),
        (512, 256, 640, 256, True, False),
        (512, 256, None, -1, True, True),
    ],
)
def test_what_the_guard_refuses(
    total: int, computed: int, matched: int | None, returned: int | None, is_async: bool, breaks: bool
) -> None:
    answer = (returned, is_async)
    request, probe = a_request(num_tokens=total), Knowing(matched)
    observing, healing, raising = (SchedulerInstrumentation(probe=probe, guard=guard) for guard in Guard)
    assert observing.on_lookup(None, request, computed, 1, answer) == answer
    assert healing.on_lookup(None, request, computed, 1, answer) == ((0, False) if breaks else answer)
    most = max(0, min(total, total if matched is None else matched) - computed)
    with pytest.raises(ContractBreach, match=f"at most {most} can be new$") if breaks else nullcontext():
        assert raising.on_lookup(None, request, computed, 1, answer) == answer


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("token ids [1, 2, 3]", "token ids [<3 numbers>]"),
        ("tensor([[1., 2.],\n        [3., 4.]])", "tensor([[<4 numbers>]])"),
        ("[np.int64(5), np.int64(6), np.int64(7)]", "[<3 numbers>]"),
        ("['1', '2', '3']", "['<3 numbers>']"),
        ("{0: 15496, 1: 995}", "{<4 numbers>}"),
        ("15496 995 50256", "<3 numbers>"),
        (repr("15496\n995\n50256"), "'<3 numbers>'"),
        ("1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7", "<7 numbers>"),
        ("1 -> 2 -> 3 -> 4 -> 5", "1 -> 2 -> 3 -> 4 -> 5"),
        ("256 vs 256 - 336 - 0 for request cmpl-1-0-0123abcd", "256 vs 256 - 336 - 0 for request cmpl-1-0-0123abcd"),
        ("at 12:00:01, block 3 of 10.0.0.1", "at 12:00:01, block 3 of 10.0.0.1"),
    ],
)
def test_a_message_is_kept_without_sequences_of_numbers(said: str, kept: str) -> None:
    """A prompt in tokens is the user's text."""
    assert message(ValueError(said)) == f"ValueError: {kept}"


def test_messages_are_short_and_always_there() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert len(message(ValueError("x" * 10**7))) == MOST
    assert message(ValueError("7 " * 10**6)).startswith("ValueError: <")
    assert message(Mute()) == "Mute: its text cannot be read"
