"""The hot path: an event is one tuple appended to a bounded ring; a thread passes batches of them to the exporter.

Nothing here ever blocks or breaks the caller. When the tracer is slow, hung or absent, the ring fills, the oldest events are
dropped and counted, and their sequence numbers are missing in the trace, so that the tracer notices the loss.

One recorder serves a process: the scheduler's and the worker's connector of a single-process engine share it.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_SDK_DISABLED,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from kvtrail import __version__
from kvtrail.connector.recording import environment, exporter
from kvtrail.connector.recording.contexts import Contexts, RequestContext, root_ids
from kvtrail.connector.recording.exceptions import MOST_OF_A_DEATH, cause_of_death
from kvtrail.connector.recording.idle_requests import IdleRequests
from kvtrail.connector.recording.request_names import naming
from kvtrail.connector.recording.ring import EVERYTHING, LARGE, EventTuple, Ring, bytes_of, numbers_of
from kvtrail.connector.recording.transport import THREAD_NAME
from kvtrail.connector.recording.values import MAX_TEXT, bounded, with_declared_types
from kvtrail.connector.settings import QUEUE_MIB, Heartbeats, LevelSwitch
from kvtrail.tracer.events import messages, semconv
from kvtrail.tracer.events.losses import Lost
from kvtrail.tracer.events.semconv import STEP_SPAN, Kind

logger = logging.getLogger("vllm.kvtrail")  # below vLLM's logger, so that its handlers print it

BATCH = 2048
"""Maximum number of events per batch, about half a millisecond of work. During each batch the caller waits for the
interpreter and loses its CPU caches, so a few large batches cost it less than many small ones."""
MAX_ROWS = 2048
"""Maximum number of rows of an event: a row takes 200 bytes with ids of maximum length, plus its new blocks."""
_EPOCH, _SAMPLED, _NAME, _SEQUENCE = map(attrgetter, ("epoch", "sampled", "name", "sequence"))
_NAMES: dict[str, str] = {kind: kind.value for kind in Kind}
"""Reading an enum's value takes five times as long."""
HEARTBEAT_S = 5.0
WARN_EVERY_S = 60.0


class Recorder:
    """Records events and exports them. Create it with `of_process`.

    Attributes:
        contexts: the contexts of all known requests.
        level: the recording level.
        steps: number of scheduling steps so far; None on a worker.
        probes_off: the connectors with a probe that is switched off, in order.
        spare: a `tracing.spare.SpareCapacity`: the scheduler's time with spare capacity; None if it is not observed.
        holders: functions, called on the recorder's thread, for the bytes that each connector holds; None if unknown.
    """

    def __init__(
        self, engine_id: str, resource: dict[str, Any], out: exporter.Exporter, *, queue_bytes: int = QUEUE_MIB << 20
    ) -> None:
        """`queue_bytes` is the approximate maximum size of waiting events."""
        self.id = secrets.token_hex(8)
        self.engine_id = engine_id
        self.level = LevelSwitch()
        self.steps: int | None = None
        self.spare: Any = None
        limit = environment.number(OTEL_BSP_MAX_QUEUE_SIZE, 65_536)
        self._ring = Ring(limit, queue_bytes)
        self._append, self._numbers = self._ring.waiting.append, self._ring.numbers
        self._many = 1 << max(1, min(BATCH, limit // 2)).bit_length() - 1  # a power of two
        self._bits_of_many = self._many - 1
        """The thread is woken at each event with none of these bits in its number."""
        self._delay_s = environment.number(OTEL_BSP_SCHEDULE_DELAY, 500) / 1000
        own = {
            "process.pid": os.getpid(),
            semconv.RECORDER_ID.key: self.id,
            semconv.ENGINE_ID.key: engine_id,
            semconv.VERSION.key: __version__,
        }
        attributes = _resource({**own, **resource}).attributes
        sampled_only = bool(resource.get(semconv.SAMPLED_ONLY.key))
        launch = str(resource.get(semconv.LAUNCH.key, ""))
        self.contexts = Contexts(engine_id, _sampler(), launch=launch, sampled_only=sampled_only, name_of=naming())
        self._heartbeats = Heartbeats(resource.get(semconv.HEARTBEATS.key, Heartbeats.AUTO))
        self._no_request = RequestContext("", "", root_ids(engine_id, self.id))
        self._exporter = out
        self._base_ns = time.time_ns() - time.monotonic_ns()
        """The offset from the monotonic clock to Unix time. It is constant: a jump of the wall clock does not affect
        events."""
        out.open(attributes, secrets.randbits(63), self._base_ns)
        self._lost: Counter[str] = Counter()
        self._sent = self._dropped_logged = 0
        self._not_recorded: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.probes_off: dict[str, None] = {}
        self.holders: list[Callable[[], int | None]] = []
        self._idle = IdleRequests()
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._flush_done = self._flush_asked = 0
        self._closing = False
        self._logged_s: dict[object, float] = {}
        """When each kind of problem was last logged."""
        self._heartbeat_s = float("-inf")
        self._connectors = 0
        self._leaving = False
        self._end_record_at: int | None = None
        """The number after the end record, if there was one."""
        self._ended_by: str | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def endpoint(self) -> str:
        """The destination of the events."""
        return self._exporter.endpoint

    def record(
        self,
        kind: str,
        source: bytes,
        context: RequestContext | None,
        start_ns: int,
        end_ns: int,
        values: tuple[Any, ...],
        error: str | None = None,
    ) -> None:
        """Record one event. Times are those of `time.monotonic_ns`; `values` are those of `events.FIELDS[kind]`, in that
        order. Never blocks, never raises."""
        if context is None:
            context = self._no_request
        elif not context.recorded:
            return
        kind = _NAMES[kind]
        size = bytes_of(kind, values)
        if error is not None:
            error = context.redacted(error)[: messages.MOST]
            size += len(error)
        if size > MAX_TEXT:
            values, is_left_out = bounded(kind, values)
            if is_left_out:  # counted, and the event is missing
                self.leave_out(kind, None)
            size = bytes_of(kind, values) + LARGE
        sequence, number = next(self._numbers), next(context.sequence)
        event = (kind, source, context.identity, sequence, number, context.epoch, start_ns, end_ns, error, values)
        if size < LARGE:
            self._append(event)
        else:
            self._ring.append_large(event, size)
        if not sequence & self._bits_of_many:
            self._wake.set()

    def record_step(
        self,
        source: bytes,
        contexts: Sequence[RequestContext],
        at_ns: int,
        computed: tuple[int, ...],
        scheduled: tuple[int, ...],
        drafted: tuple[int, ...],
        blocks: Sequence[Sequence[Sequence[int]]],
        step: int,
        tokens: int,
    ) -> None:
        """Record one step of several requests: one event with a row, and a number, for each, and several where there are too
        many rows for a receiver. Never blocks, never raises.

        Args:
            computed, scheduled, drafted: tokens, by row.
            blocks: the blocks that the step adds, by row and KV cache group.
            step: the number of the step.
            tokens: total number of tokens in the step.
        """
        if len(contexts) > MAX_ROWS:
            for first in range(0, len(contexts), MAX_ROWS):
                rows = slice(first, first + MAX_ROWS)
                columns = computed[rows], scheduled[rows], drafted[rows], blocks[rows]
                self.record_step(source, contexts[rows], at_ns, *columns, step, tokens)
            return
        added = tuple(chain.from_iterable(blocks))
        taken = tuple(islice(self._numbers, len(contexts)))  # atomically: no other thread gets a number in between
        values = (
            tuple(map(_NAME, contexts)),
            tuple(map(next, map(_SEQUENCE, contexts))),
            tuple(map(_EPOCH, contexts)) if any(map(_EPOCH, contexts)) else None,
            computed,
            None if scheduled.count(1) == len(scheduled) else scheduled,
            drafted if any(drafted) else None,
            tuple(map(len, added)),
            tuple(chain.from_iterable(added)) or None,
            None if all(map(_SAMPLED, contexts)) else tuple(map(_SAMPLED, contexts)),
            None if len(added) == len(contexts) else len(added) // len(contexts),
            step,
            tokens,
        )
        event = (STEP_SPAN, source, self._no_request.identity, taken[0], 0, 0, at_ns, at_ns, None, values)
        if (size := bytes_of(STEP_SPAN, values)) < LARGE:
            self._append(event)
        else:
            self._ring.append_large(event, size)
        if taken[-1] & self._bits_of_many < len(taken):
            self._wake.set()

    def leave_out(self, kind: str, concerned: Iterable[RequestContext] | None) -> None:
        """Count data of this kind that could not be recorded. If an event is missing because of it, skip a number in the
        recorder's events and in those of the requests concerned, so that the tracer notices the loss; `concerned` is None if
        no event is missing."""
        with self._counting:
            self._not_recorded[kind] += 1
        if concerned is not None:
            self._ring.skip()
            for context in concerned:
                next(context.sequence)

    @property
    def dropped(self) -> int:
        """Number of events lost so far: dropped from a full ring, given up after a failed export, or refused."""
        return sum(self._lost.values()) + self._ring.dropped + sum(self._exporter.refused.values())

    @property
    def dropped_by(self) -> dict[str, int]:
        """Number of events lost so far, by reason (`Lost`)."""
        pushed_out, by_bytes = self._ring.dropped, self._ring.crowded_out
        lost: Counter[str] = self._lost + Counter(self._exporter.refused)
        lost[Lost.QUEUE_EVENTS], lost[Lost.QUEUE_BYTES] = max(0, pushed_out - by_bytes), min(pushed_out, by_bytes)
        return {str(why): count for why, count in lost.items() if count}

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far has been sent; False after a timeout."""
        with self._flushed:
            self._flush_asked += 1
            number = self._flush_asked
            self._wake.set()
            return self._flushed.wait_for(lambda: self._flush_done >= number, timeout_s)

    def join(self) -> None:
        """Count an additional recorded connector."""
        with self._counting:
            self._connectors += 1
            self._leaving, self._ended_by = False, None

    def leave(self, timeout_s: float, *, ended_by: str | None = None) -> None:
        """Note that a connector has shut down, perhaps because of an exception. Send the waiting events, and after the
        last connector the end record. An event that is recorded later is still sent, and revokes the end record."""
        self._die_of(ended_by)
        with self._counting:
            self._connectors -= 1
            self._leaving = self._connectors <= 0
        self.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send remaining events for at most `timeout_s`, and stop. A second call does nothing."""
        if self._closing:
            return
        self._die_of(cause_of_death())
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._exporter.close()  # hanging events are given up
        self._thread.join(timeout_s / 4)
        atexit.unregister(self.close)

    def _die_of(self, error: str | None) -> None:
        """Store the exception for the end record; the first one counts."""
        if error is not None and self._ended_by is None:
            self._ended_by = self.contexts.redacted(error)[:MOST_OF_A_DEATH]

    # Everything below runs on the recorder's own thread.

    def _run(self) -> None:
        batch: list[EventTuple] = []
        while True:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            closing = self._closing
            try:
                batch = self._send_all(batch, closing)
            except Exception:  # no error may end the recording
                logger.exception("kvtrail: up to %d events may be lost", _numbers(batch))
                batch = []
            if closing:
                return

    def _send_all(self, batch: list[EventTuple], closing: bool) -> list[EventTuple]:
        """Send this batch, then the waiting events of the ring, then a heartbeat if one is due. Returns unsent events."""
        asked = self._flush_asked  # read first: events recorded before are in the ring
        sent, least = True, 1
        while sent and (batch or (batch := self._ring.take(BATCH, least=least)) or (batch := self._heartbeat(closing))):
            sent = self._send(batch)
            if sent:
                batch = []
                least = 1 if closing or asked != self._flush_done else self._many  # a few can wait for more
        if sent:
            with self._flushed:
                self._flush_done = asked
                self._flushed.notify_all()
        elif closing:
            rest = self._ring.take(EVERYTHING, most_bytes=EVERYTHING)
            self._give_up(batch)
            self._lost[Lost.UNSENT] += _numbers(rest)
        elif self._ring.is_full:
            self._give_up(batch)  # the tracer may refuse only these: try others
            batch = []
        return batch

    def _send(self, events: list[EventTuple]) -> bool:
        refused = self._refused()
        try:
            try:
                sent = self._exporter.send(events)
            except Exception:
                self._convert(events)
                sent = not events or self._exporter.send(events)
        except Exception:
            logger.exception("kvtrail: %d events could not be encoded and are lost", _numbers(events))
            self._lost[Lost.UNREADABLE] += _numbers(events)
            return True
        # Refused events of an unfinished batch count now, the others when it is finished.
        self._sent += (_numbers(events) if sent else 0) - (self._refused() - refused)
        if sent:
            self._log_dropped()
        elif self._may_log(failure := self._exporter.failure):
            logger.warning(
                "kvtrail: no tracer answers at %s%s; %d events wait, %d were dropped. The engine is not affected. %s",
                self.endpoint,
                failure.why,
                len(self._ring.waiting) + len(events),
                self.dropped,
                failure.advice,
            )
        return sent

    def _refused(self) -> int:
        return sum(self._exporter.refused.values())

    def _may_log(self, what: object, every_s: float = WARN_EVERY_S) -> bool:
        """Whether this kind is due for logging, which is then recorded as logged."""
        now_s = time.monotonic()
        is_due = what not in self._logged_s or now_s - self._logged_s[what] > every_s
        if is_due:
            self._logged_s[what] = now_s
        return is_due

    def _log_dropped(self) -> None:
        """Log, when events are sent again, how many were dropped."""
        dropped = self.dropped
        if dropped != self._dropped_logged and self._may_log("dropped"):
            self._dropped_logged = dropped
            reasons = ", ".join(f"{why} {count}" for why, count in self.dropped_by.items())
            logger.warning("kvtrail: %d events were dropped so far (%s); later ones arrive.", dropped, reasons)

    def _give_up(self, batch: list[EventTuple]) -> None:
        """Handle a failed batch; a part of it may have been sent."""
        left = _numbers(batch) if self._exporter.left is None else self._exporter.left
        self._lost[Lost.UNSENT] += left
        self._sent += _numbers(batch) - left

    def _convert(self, events: list[EventTuple]) -> None:
        """Convert unexpected values in these events, and drop events that cannot be recorded."""
        readable = []
        for event in events:
            if (converted := with_declared_types(event)) is not None:
                readable.append(converted)
            else:
                self.leave_out(str(event[0]), None)  # its number is missing
        events[:] = readable

    def _heartbeat(self, closing: bool) -> list[EventTuple]:
        """Record a heartbeat, if one is due and the receiver uses it. The last one is the end record, after the roots of the
        open requests; then there is none until another event is recorded."""
        now_s, closing = time.monotonic(), closing or self._leaving
        if self._end_record_at is not None:
            if self._end_record_at == self._ring.next:
                return []
            self._end_record_at, self._leaving, closing = None, False, self._closing
        elif not closing and now_s - self._heartbeat_s < HEARTBEAT_S:
            return []
        self._heartbeat_s = now_s
        self.level.read()
        if closing and self._cut_off():
            return self._ring.take(BATCH)
        if closing and self._heartbeats is Heartbeats.OFF:
            self._end_record_at = self._ring.next
        if not ((closing and self._heartbeats is Heartbeats.AUTO) or self._has_listener()):
            return []
        at_ns, dropped = time.monotonic_ns(), self.dropped
        with self._counting:
            not_recorded = tuple(f"{kind}:{count}" for kind, count in self._not_recorded.items())
        losses = (self.steps, not_recorded or None, tuple(self.probes_off) or None)
        recorded = self._sent + dropped  # before the requests' own numbers are read, which increase in the meantime
        idle = None if self.steps is None else self._idle.select(self.contexts.events())
        ended_by = self._ended_by if closing else None
        spare = self.spare
        spare_ns, paused, running = (spare.total_ns, spare.is_paused or None, spare.running) if spare else (None,) * 3
        held = self._held_bytes()
        reasons = tuple(f"{why}:{count}" for why, count in self.dropped_by.items()) or None
        of_scheduler = (spare_ns, paused, reasons, running)
        values = (recorded, dropped, closing, *losses, *(idle or (None, None)), ended_by, held, *of_scheduler)
        self.record(Kind.HEARTBEAT, b"", None, at_ns, at_ns, values)
        events = self._ring.take(BATCH)
        if closing:
            self._end_record_at = self._ring.next
        return events

    def _held_bytes(self) -> int | None:
        """Bytes held by the connectors of this process that report them; None if none does."""
        known = [held for ask in tuple(self.holders) if (held := ask()) is not None]
        return sum(known) if known else None

    def _has_listener(self) -> bool:
        """Whether the receiver uses heartbeats. The receiver is known after the acknowledgement of a batch, which is empty if
        there is nothing to send."""
        if self._heartbeats is not Heartbeats.AUTO:
            return self._heartbeats is Heartbeats.SPANS
        if self._exporter.is_kvtrail is None:
            self._send([])
        if self._exporter.is_kvtrail is False and self._may_log("no heartbeats", float("inf")):
            logger.info(
                "kvtrail sends no heartbeats: the receiver at %s is not kvtrail. If kvtrail is behind it, as behind a"
                " Collector, set KVTRAIL_HEARTBEATS=spans, or it cannot distinguish an idle engine from a dead one.",
                self.endpoint,
            )
        return bool(self._exporter.is_kvtrail)

    def _cut_off(self) -> bool:
        """Record the roots of the open requests, which will not end otherwise; returns whether there were any."""
        begun = self.contexts.begun()
        for each in begun:
            values = (semconv.CUT_OFF, getattr(each.request, "num_prompt_tokens", None))
            self.record(Kind.CUT_OFF, each.source or b"", each, each.start_ns, time.monotonic_ns(), values)
            self.contexts.end(each)
        return bool(begun)


def _numbers(events: Sequence[EventTuple]) -> int:
    """The number of sequence numbers of the events."""
    return sum(map(numbers_of, events))


def _resource(attributes: dict[str, Any]) -> Resource:
    """The resource that the SDK detects, including `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, with these attributes.
    By default, the service is vLLM, and the host is this machine."""
    machine = Resource({"service.name": "vllm", "host.name": socket.gethostname()})
    try:
        resource = Resource.create(attributes)
    except Exception:  # a detector that the user asked for
        logger.exception("kvtrail: OpenTelemetry's attributes of this process cannot be read and are omitted")
        return machine.merge(Resource(attributes))
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "vllm"}))
    return machine.merge(resource)


def _sampler() -> Sampler:
    """The sampler that `OTEL_TRACES_SAMPLER` names."""
    with environment.only(environment.usable()):
        return TracerProvider(shutdown_on_exit=False, resource=Resource({}), span_limits=_NO_LIMITS).sampler


_NO_LIMITS = SpanLimits(*[SpanLimits.UNSET] * 8)
"""kvtrail creates no SDK spans, so invalid span limits in the environment do not matter."""
_recorders: dict[tuple[int, str], Recorder | None] = {}
"""By process and engine: a forked process creates its own recorder."""
_lock = threading.Lock()
_make_exporter: Callable[[], exporter.Exporter] | None = None
"""Set by `exporting_to`; None means the exporter of the environment."""


def of_process(engine_id: str, resource: dict[str, Any], *, queue_mib: int = QUEUE_MIB) -> Recorder | None:
    """The recorder of this engine in this process, created at the first call; None if `OTEL_SDK_DISABLED` is true, or if none
    can be created."""
    key = (os.getpid(), engine_id)
    with _lock:
        if key not in _recorders:
            if _make_exporter is None and os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
                _recorders[key] = None
            else:
                _recorders[key] = _make(engine_id, resource, queue_mib << 20)
        return _recorders[key]


def _make(engine_id: str, resource: dict[str, Any], queue_bytes: int) -> Recorder | None:
    try:
        out = exporter.from_environment() if _make_exporter is None else _make_exporter()
        return Recorder(engine_id, resource, out, queue_bytes=queue_bytes)
    except ImportError as missing:
        logger.warning("kvtrail: nothing is recorded: %s. The engine runs without it.", missing)
        return None
    except Exception as error:
        logger.exception("kvtrail: nothing can be recorded (%s); the engine runs without it", error)
        return None


@contextmanager
def exporting_to(make_exporter: Callable[[], exporter.Exporter]) -> Iterator[None]:
    """A context in which new recorders get exporters from this function instead of the environment, and are closed at the
    end. For programs that are their own tracer; not reentrant."""
    global _make_exporter, _recorders
    before = _make_exporter, _recorders
    _make_exporter, _recorders = make_exporter, {}
    try:
        yield
    finally:
        for each in recorders():
            each.close()
        _make_exporter, _recorders = before


def forget(engine_id: str) -> None:
    """Close an engine's recorder. A later engine with the same id gets a new one, as in a separate process."""
    if (gone := _recorders.pop((os.getpid(), engine_id), None)) is not None:
        gone.close()


def recorders() -> list[Recorder]:
    """The recorders of this process, to flush them or to read how much they dropped."""
    return [recorder for (pid, _), recorder in _recorders.items() if recorder is not None and pid == os.getpid()]
