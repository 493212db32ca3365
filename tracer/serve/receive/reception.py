"""Counts what was received: by engine, by recorder, and what could not be understood."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.liveness.recorders import Recorders, RecorderState
from kvtrail.tracer.model.engines import described
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.metrics.series import OTHER
from kvtrail.tracer.serve.receive.duplicates import MOST_RECORDERS, Arrived
from kvtrail.tracer.serve.receive.received import Received

logger = logging.getLogger("kvtrail")

NOTE_ENGINE_NS = 60 * 10**9
"""How often the store is told that an engine is still heard of."""
LONGEST_UNKNOWN = 100
"""Characters of a name that is not known. Names come from outside, too."""
MOST_TOLD = 1_000
"""Kinds of malformed spans, and names that are not known, that are remembered; each is told once."""


class Reception:
    """Counts batches of spans when they are stored."""

    def __init__(self, metrics: Metrics, recorders: Recorders) -> None:
        self._metrics = metrics
        self._recorders = recorders
        self._noted: dict[str, int] = {}
        """By recorder: when the store was told of its engine."""
        self._told: set[tuple[str, str]] = set()

    def engines(self, came: Received) -> dict[str, dict[str, str]]:
        """What engines say of themselves, where the store was not told so a moment ago."""
        said: dict[str, dict[str, str]] = {}
        due_ns = time.monotonic_ns() - NOTE_ENGINE_NS
        for resource, decoded in came.parts:
            if decoded.events and self._noted.get(decoded.events[0].recorder, due_ns) <= due_ns:
                about = {field: text for field, text in described(resource).items() if text}
                said.setdefault(decoded.events[0].engine, {}).update(about)
        return said

    def count(self, came: Received, arrived: Arrived, *, now_ns: int) -> None:
        """Count a batch, which was stored at `now_ns`."""
        metrics = self._metrics
        metrics.spans_repeated.inc(len(arrived.again))
        metrics.spans_foreign.inc(len(came.foreign))
        again = {id(event) for event in arrived.again}
        for resource, decoded in came.parts:
            if events := [event for event in decoded.events if id(event) not in again] if again else decoded.events:
                oldest_ns = min([event.end_ns for event in events])
                metrics.count_received(events[0].engine, events=len(events), oldest_ns=oldest_ns, stored_ns=now_ns)
                with metrics.internal_errors.caught(
                    Where.METRICS, f"recorder {events[0].recorder} is not shown as it is"
                ):
                    self._count_recorder(events, resource, now_ns)
            self._count_unknown(resource, decoded)
        self._tell(came)

    def _count_recorder(self, events: Sequence[Event], resource: Mapping[str, Any], now_ns: int) -> None:
        at_ns = time.monotonic_ns()
        id_ = events[0].recorder
        recorder = self._recorders.get(id_)
        if recorder is None:
            recorder = RecorderState.of(events[0], resource, at_ns=at_ns)
            self._recorders.add(recorder)
            self._metrics.describe(recorder.engine, recorder.info)
            for misfit in decode.misfits(resource):
                logger.warning("recorder %s: %s", id_, misfit)
            self._count_names(resource, decode.unknown_in_resource(resource), what="attribute")
        if at_ns - self._noted.get(id_, at_ns - NOTE_ENGINE_NS) >= NOTE_ENGINE_NS:
            if len(self._noted) >= MOST_RECORDERS:
                self._noted.clear()
            self._noted[id_] = at_ns
        before = dict(recorder.dropped_by)
        dropped = recorder.count(events, heard_ns=now_ns, at_ns=at_ns)
        if dropped is not None:
            self._metrics.count_lost(recorder.engine, dropped=dropped)
            for why, lost in recorder.dropped_by.items():
                self._metrics.count_dropped_by(recorder.engine, why, lost - before.get(why, 0))

    def _count_unknown(self, resource: Mapping[str, Any], decoded: Decoded) -> None:
        """Count what only another version of kvtrail knows. What the resource has was counted when its recorder came."""
        self._count_names(resource, decoded.unknown_spans.elements(), what="span")
        if decoded.unknown_attributes:
            of_resource = decode.unknown_in_resource(resource)
            names = (name for name in decoded.unknown_attributes.elements() if name not in of_resource)
            self._count_names(resource, names, what="attribute")

    def _count_names(self, resource: Mapping[str, Any], names: Iterable[str], *, what: str) -> None:
        """Count names that are not known; the log tells each once."""
        recorder = self._recorders.get(str(resource.get(semconv.RECORDER_ID.key, "")))
        engine = OTHER if recorder is None else recorder.engine  # only a recorder's engine is ever retired
        version = str(resource.get(semconv.VERSION.key, ""))
        for name in names:
            short = name[:LONGEST_UNKNOWN]
            self._metrics.count_unknown(engine, what=what)
            if recorder is not None:
                recorder.count_unknown(short)
            if self._is_new("", short):
                said = "%r, which kvtrail %r has recorded, is not known to this one: it is stored and counted, and not judged"
                logger.warning(said, short, version[:LONGEST_UNKNOWN] or "of another version")

    def _tell(self, came: Received) -> None:
        """Count and tell what is wrong with spans."""
        for malformed in came.malformed:
            self._metrics.spans_malformed.inc()
            if self._is_new(*malformed.about):
                logger.warning("%s; it is stored, but no rule judges it. The like of it is only counted.", malformed)
        for error in came.errors:
            self._metrics.internal_errors.count(Where.DECODE, error, "a span is stored and not judged")
            error.__traceback__ = None  # which keeps the request, and the call that brought it
        if (refused := came.refused) is not None:
            self._metrics.spans_refused.inc(refused.spans)
            logger.warning("%s spans could not be read and were not stored: %s", refused.spans, refused.reason)

    def _is_new(self, name: str, what: str) -> bool:
        about = (name, what)
        if about in self._told or len(self._told) >= MOST_TOLD:
            return False
        self._told.add(about)
        return True
