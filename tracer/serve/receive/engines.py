"""The engines that a sidecar knows: their recorders, lost events and launches, and the metrics that show them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import RetainedHandoff, retained_handoffs
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.liveness.launches import Change, Launches
from kvtrail.tracer.liveness.markers import of_launches
from kvtrail.tracer.liveness.recorders import Recorders, RecorderState
from kvtrail.tracer.model.engines import described
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.known_findings import KnownHere
from kvtrail.tracer.serve.metrics.bounded_series import OTHER
from kvtrail.tracer.serve.metrics.engine_gauges import EngineGauges, engine_gauges
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.receiving import MAX_RECORDERS, ReceivedRequest

logger = logging.getLogger("kvtrail")

NOTE_ENGINE_NS = 60 * 10**9
"""Interval in which the store records that an engine still reports."""
SHOW_SILENT_NS = 3600 * 10**9
"""Time for which an engine that has stopped reporting stays in the metrics."""
LONGEST_UNKNOWN = 100
"""Maximum length of an unknown name in characters. Names come from outside."""
MAX_LOGGED = 1_000
"""Maximum number of remembered kinds of malformed spans and unknown names; each is logged once."""


class Engines:
    """Counts stored requests by recorder, and watches the engines.

    Attributes:
        recorders: recorders that report, or did lately.
        launches: the launches of engines.
        kept: the hand-offs with kept blocks, as of the last metrics update.
    """

    def __init__(self, stored: Iterable[Launch], heard: Mapping[str, int], metrics: Metrics) -> None:
        """`stored` are the launches as last written, and `heard` the times at which their engines last reported, in Unix
        nanoseconds."""
        self.recorders = Recorders()
        self.launches = Launches(stored, heard, at_ns=time.monotonic_ns())
        self.kept: list[RetainedHandoff] = []
        self._metrics = metrics
        self._noted: BoundedDict[str, int] = BoundedDict(MAX_RECORDERS)
        """By recorder: when its engine was last recorded in the store."""
        self._logged: set[tuple[str, str]] = set()
        self._lost: Counter[str] = Counter()
        self._shown: dict[str, EngineGauges] = {}
        """The engines in the metrics."""

    def descriptions(self, came: ReceivedRequest) -> dict[str, dict[str, str]]:
        """The engines' descriptions that the store has not recorded recently."""
        found: dict[str, dict[str, str]] = {}
        due_ns = time.monotonic_ns() - NOTE_ENGINE_NS
        for resource, decoded in came.parts:
            if decoded.events and self._noted.get(decoded.events[0].recorder, due_ns) <= due_ns:
                about = {field: text for field, text in described(resource).items() if text}
                found.setdefault(decoded.events[0].engine, {}).update(about)
        return found

    def count(self, came: ReceivedRequest, *, now_ns: int) -> None:
        """Count the events of an OTLP request, which was stored at `now_ns`."""
        metrics = self._metrics
        metrics.spans_repeated.inc(len(came.again))
        metrics.spans_foreign.inc(len(came.foreign))
        for event in (doubted := [*came.contested, *came.too_far]):
            metrics.count_lost(event.engine, conflicting=1)
            if self._is_new(event.recorder, "conflict"):
                recorder, engine = event.recorder[:LONGEST_UNKNOWN], event.engine[:LONGEST_UNKNOWN]
                text = "two senders use the id %r of a recorder of engine %r, at number %s: its history is incomplete"
                logger.warning(text, recorder, engine, event.sequence)
        again = {id(event) for event in (*came.again, *doubted)}
        for resource, decoded in came.parts:
            if events := [event for event in decoded.events if id(event) not in again] if again else decoded.events:
                oldest_ns = min([event.end_ns for event in events])
                metrics.count_received(events[0].engine, events=len(events), oldest_ns=oldest_ns, stored_ns=now_ns)
                with metrics.internal_errors.caught(
                    Where.METRICS, f"recorder {events[0].recorder} is not shown as it is"
                ):
                    self._count_recorder(events, resource, now_ns)
            self._count_unknown(resource, decoded)
        self._log(came)

    def update_launches(self, detector: Detector) -> None:
        """Update the state of the launches."""
        with self._metrics.internal_errors.caught(Where.TIDY):
            changes = self.launches.update(
                self.recorders, detector.accounts.values(), detector.findings, at_ns=time.monotonic_ns()
            )
            self._count_launches(changes)

    def show(self, detector: Detector, known: KnownHere, *, now_ns: int) -> None:
        """Update the engines' metrics; known findings have their own label value."""
        for engine, count in (detector.lost - self._lost).items():
            self._metrics.count_lost(engine, missing=count)
        self._lost = Counter(detector.lost)
        gone = {
            name: EngineGauges(engine=name, info=last.info, heard_ns=last.heard_ns)
            for name, last in self._shown.items()
        }
        self.kept = list(retained_handoffs(detector))
        shown = engine_gauges(self.recorders.values(), detector, self.kept, known.has)
        of_now = {gauges.engine: gauges for gauges in shown}
        for engine, gauges in (gone | of_now).items():
            if gauges.heard_ns < now_ns - SHOW_SILENT_NS:
                self._metrics.retire(engine)
                self._shown.pop(engine, None)
            else:  # also for an engine that has ended: its last counts have not been scraped yet
                self._metrics.show(gauges)
                self._shown[engine] = gauges

    def _count_launches(self, changes: Sequence[Change]) -> None:
        described = {each.engine: each.description for each in self.recorders.values()}
        moments: dict[tuple[str, int], None] = {}
        for before, now in changes:
            self._metrics.count_launch(before, now)
            if (moment_ns := now.began_ns if before is None else now.ended_ns) is not None:
                moments[now.engine, moment_ns] = None
            if (
                now.engine not in self._shown and now.ended_ns is not None
            ):  # it was never shown: it is removed like others
                self._shown[now.engine] = EngineGauges(engine=now.engine, heard_ns=now.ended_ns)
        if moments:
            since_ns, until_ns = min(ns for _, ns in moments), max(ns for _, ns in moments)
            for marker in of_launches(self.launches.known(), described, since_ns=since_ns, until_ns=until_ns):
                if (marker.engine, marker.at_ns) in moments:
                    self._metrics.mark(marker)

    def _count_recorder(self, events: Sequence[Event], resource: Mapping[str, Any], now_ns: int) -> None:
        at_ns = time.monotonic_ns()
        id_ = events[0].recorder
        recorder = self.recorders.get(id_)
        if recorder is None:
            recorder = RecorderState.of(events[0], resource, at_ns=at_ns)
            self.recorders.add(recorder)
            self._metrics.describe(recorder.engine, recorder.info)  # with its first number, since alerts join them
            for misfit in decode.misfits(resource):
                logger.warning("recorder %s: %s", id_, misfit)
            self._count_names(resource, decode.unknown_in_resource(resource), what="attribute")
        if at_ns - self._noted.get(id_, at_ns - NOTE_ENGINE_NS) >= NOTE_ENGINE_NS:
            self._noted[id_] = at_ns
        before = dict(recorder.dropped_by)
        dropped = recorder.count(events, heard_ns=now_ns, at_ns=at_ns)
        if dropped is not None:
            self._metrics.count_lost(recorder.engine, dropped=dropped)
            for why, lost in recorder.dropped_by.items():
                self._metrics.count_dropped_by(recorder.engine, why, lost - before.get(why, 0))

    def _count_unknown(self, resource: Mapping[str, Any], decoded: Decoded) -> None:
        """Count spans and attributes of another version of kvtrail. Attributes of the resource were counted when its recorder
        first reported."""
        self._count_names(resource, decoded.unknown_spans.elements(), what="span")
        if decoded.unknown_attributes:
            of_resource = decode.unknown_in_resource(resource)
            names = (name for name in decoded.unknown_attributes.elements() if name not in of_resource)
            self._count_names(resource, names, what="attribute")

    def _count_names(self, resource: Mapping[str, Any], names: Iterable[str], *, what: str) -> None:
        """Count unknown names; each is logged once."""
        recorder = self.recorders.get(str(resource.get(semconv.RECORDER_ID.key, "")))
        engine = OTHER if recorder is None else recorder.engine  # only the engine of a recorder is ever removed
        version = str(resource.get(semconv.VERSION.key, ""))
        for name in names:
            short = name[:LONGEST_UNKNOWN]
            self._metrics.count_unknown(engine, what=what)
            if recorder is not None:
                recorder.count_unknown(short)
            if self._is_new("", short):
                text = (
                    "%r, recorded by kvtrail %r, is unknown to this version: it is stored and counted, but not judged"
                )
                logger.warning(text, short, version[:LONGEST_UNKNOWN] or "of another version")

    def _log(self, came: ReceivedRequest) -> None:
        """Count and log spans that are malformed, cause an internal error, or cannot be read."""
        for malformed in came.malformed:
            self._metrics.spans_malformed.inc()
            if self._is_new(*malformed.about):
                logger.warning(
                    "%s; it is stored, but no rule judges it. Further spans like it are only counted.", malformed
                )
        for error in came.errors:
            self._metrics.internal_errors.count(Where.DECODE, error, "a span is stored and not judged")
            error.__traceback__ = None  # the traceback would keep the request and its call in memory
        if (refused := came.refused) is not None:
            logger.warning("%s spans could not be read and were not stored: %s", refused.spans, refused.reason)

    def _is_new(self, name: str, what: str) -> bool:
        about = (name, what)
        if about in self._logged or len(self._logged) >= MAX_LOGGED:
            return False
        self._logged.add(about)
        return True
