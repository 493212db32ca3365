"""The calls that vLLM's scheduler made to one connector object, reconstructed from a recorded history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvtrail.connector.known.environment import Unusable
from kvtrail.connector.simulate.recorded import RecordedRequest, recorded_requests
from kvtrail.connector.simulate.rerun.plain_steps import STEP_EVENTS, leaves_out, with_plain_steps
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import (
    Alloc,
    Event,
    Evict,
    Flush,
    LoadError,
    LoadPlan,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    Sent,
    Stats,
    StorePlan,
    TransferEnd,
)
from kvtrail.tracer.history.history import History


class Method(StrEnum):
    """The calls, as vLLM names them."""

    BEGIN = "on_new_request"
    LOOKUP = "get_num_new_matched_tokens"
    ALLOC = "update_state_after_alloc"
    STEP = "build_connector_meta"
    REPORT = "update_connector_output"
    END = "request_finished"
    RESET = "reset_cache"


@dataclass(frozen=True, slots=True)
class Call:
    """One call and its events: a single one, or for a step and a report any number."""

    method: Method
    events: tuple[Event, ...]

    @property
    def event(self) -> Event:
        """The first of its events; for most methods the only one."""
        return self.events[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCalls:
    """The calls to one connector object.

    Attributes:
        engine, recorder, connector_id: of the object.
        connector: its class name.
        calls: in order.
        block_size: tokens per KV block; None where it is not recorded.
        chunk_size: tokens per chunk of the connector's store; None where unknown.
        lost_from: the sequence number from which on events are missing: the last one before a gap, which may belong to the
            same call; None without a gap.
        request_lost_from: the same for each request with missing events: the first number after them.
        in_detail: the (request, epoch) pairs of which every step is recorded.
        settings: the recorded numbers and booleans of the connector's `kv_connector_extra_config`.
        drafts: speculative tokens of a step at most.
        one_process: whether workers of this engine were recorded in the scheduler's process.
    """

    engine: str
    recorder: str
    connector_id: str
    connector: str
    calls: tuple[Call, ...]
    block_size: int | None
    chunk_size: int | None
    lost_from: int | None
    request_lost_from: Mapping[str, int]
    in_detail: frozenset[tuple[str, int]]
    settings: Mapping[str, Any]
    drafts: int
    one_process: bool

    def requests(self) -> dict[str, RecordedRequest]:
        """The requests that the calls are about."""
        return recorded_requests(event for call in self.calls for event in call.events)

    def whole_at(self, event: Event) -> bool:
        """Whether everything that the connector was called with up to this event is recorded."""
        lost = (self.lost_from, self.request_lost_from.get(event.request or ""))
        return all(number is None or event.sequence < number for number in lost)


_SINGLE: dict[type[Event], Method] = {
    RequestStart: Method.BEGIN,
    Lookup: Method.LOOKUP,
    Alloc: Method.ALLOC,
    RequestEnd: Method.END,
    Reset: Method.RESET,
}
_REPORTED = (Received, Sent, TransferEnd, LoadError)
_ORDER: dict[type[Event], int] = {Preempt: 0, Schedule: 0, Stats: 0, LoadPlan: 1, Evict: 2, StorePlan: 3, Flush: 4}
"""The order in which the events of one step are recorded. A probe's other events come last and belong to no call."""


def recorded_calls(history: History, *, request: str | None = None) -> RecordedCalls:
    """The calls in a history; those about `request`, if there are several connectors.

    Raises:
        Unusable: there are none, or of several connectors and `request` does not choose one.
    """
    lookups: dict[tuple[str, str, str], list[Event]] = {}
    for event in history.events:
        if isinstance(event, Lookup | Alloc) and event.role == "scheduler" and request in (None, event.request):
            lookups.setdefault((event.engine, event.recorder, event.connector_id), []).append(event)
    if not lookups:
        about = "" if request is None else f" of request {request}"
        raise Unusable(f"no call of a scheduler{about} is recorded, so there is nothing to run again")
    if len(lookups) > 1:
        names = ", ".join(f"{events[0].connector} of engine {key[0]}" for key, events in lookups.items())
        raise Unusable(
            f"{len(lookups)} connectors were recorded ({names}); choose one by a request of it, with --request"
        )
    (((engine, recorder, connector_id), (first, *_)),) = lookups.items()
    recorded = [event for event in history.events if (event.engine, event.recorder) == (engine, recorder)]
    of_all = (RequestStart, RequestEnd)  # recorded once for all connectors of an engine
    mine = [e for e in recorded if e.role == "scheduler" and (e.connector_id == connector_id or isinstance(e, of_all))]
    drafts = max((e.drafted or 0 for e in mine if isinstance(e, Schedule)), default=0)
    drafts = drafts or int(history.resource(recorder).get(semconv.DRAFTS.key) or 0)
    calls = tuple(_timed_calls(with_plain_steps(mine)) if leaves_out(mine) else _calls(mine, drafts=drafts > 0))
    return RecordedCalls(
        engine=engine,
        recorder=recorder,
        connector_id=connector_id,
        connector=first.connector,
        calls=calls,
        block_size=next((e.block_size for e in mine if e.block_size), None),
        chunk_size=next((e.chunk_size for e in mine if e.chunk_size), None),
        lost_from=_lost_from(recorded),
        request_lost_from=_lost_requests(recorded),
        in_detail=frozenset(
            (e.request, e.epoch) for e in mine if isinstance(e, Schedule) and e.request and e.drafted is not None
        ),
        settings=_settings(history.resource(recorder)),
        drafts=drafts,
        one_process=any(e.role == "worker" for e in recorded),
    )


def _settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    try:
        settings = json.loads(resource.get(semconv.CONNECTOR_SETTINGS.key) or "{}")
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _calls(events: Iterable[Event], *, drafts: bool) -> Iterable[Call]:
    held: list[Event] = []
    for event in events:
        method = _SINGLE.get(type(event))
        if method is None and type(event) not in _ORDER and not isinstance(event, _REPORTED):
            continue  # a worker's, a heartbeat, or a probe's: no call
        if held and (method is not None or not _same_call(held, event, drafts=drafts)):
            yield _call(held)
            held = []
        if method is not None:
            yield Call(method, (event,))
        else:
            held.append(event)
    if held:
        yield _call(held)


def _timed_calls(events: Iterable[Event]) -> Iterable[Call]:
    """The calls in a recording of a kvtrail that records all of a step at one time."""
    held: list[Event] = []
    for event in events:
        method, is_step, is_report = (
            _SINGLE.get(type(event)),
            isinstance(event, STEP_EVENTS),
            isinstance(event, _REPORTED),
        )
        if not (method or is_step or is_report):
            continue
        last = held[-1] if held else None
        if last is not None and not (
            (is_step and isinstance(last, STEP_EVENTS) and last.start_ns == event.start_ns)
            or (is_report and isinstance(last, _REPORTED))
        ):
            yield _call(held)
            held = []
        if method is not None:
            yield Call(method, (event,))
        else:
            held.append(event)
    if held:
        yield _call(held)


def _call(held: Sequence[Event]) -> Call:
    return Call(Method.REPORT if isinstance(held[0], _REPORTED) else Method.STEP, tuple(held))


def _same_call(held: Sequence[Event], event: Event, *, drafts: bool) -> bool:
    """Whether an event belongs to the same call as those before it. Events that are recorded at once have one time."""
    if isinstance(event, StorePlan) and _beyond(held, event, drafts=drafts):
        return False
    last = held[-1]
    if isinstance(last, _REPORTED) or isinstance(event, _REPORTED):
        return isinstance(last, _REPORTED) and isinstance(event, _REPORTED)
    before, now = _ORDER[type(last)], _ORDER[type(event)]
    if before == now and now in (0, 1, 3):
        return last.start_ns == event.start_ns
    return before <= now


def _beyond(held: Sequence[Event], plan: StorePlan, *, drafts: bool) -> bool:
    """Whether a plan stores what the step does not compute: then it belongs to a later step, not recorded at level
    basic. With drafts, what a step runs may be rejected, and is not stored in it."""
    reached = [
        event.computed + (0 if drafts else event.scheduled)
        for event in held
        if isinstance(event, Schedule) and event.request == plan.request
    ]
    return plan.start is not None and any(plan.start + plan.count > end for end in reached)


def _lost_from(events: Sequence[Event]) -> int | None:
    return next((events[max(0, n - 1)].sequence for n, event in enumerate(events) if event.sequence != n), None)


def _lost_requests(events: Sequence[Event]) -> dict[str, int]:
    """The requests with a gap in their numbers, and the sequence number of the first event after it."""
    expected: Counter[str] = Counter()
    lost: dict[str, int] = {}
    for event in events:
        if event.request is not None:
            if event.request_sequence != expected[event.request]:
                lost.setdefault(event.request, event.sequence)
            expected[event.request] += 1
    return lost
