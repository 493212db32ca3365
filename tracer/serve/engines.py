"""What the sidecar knows of each recorder, and the state of each engine that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.ordering import Gaps
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event, Heartbeat

INFO = ("model_name", "service_name", "vllm_version")
"""The labels that describe an engine, in the order of `EngineState.info`."""


@dataclass(slots=True)
class RecorderState:
    """One recorder, which is one process of an engine. Counts are events, times are Unix nanoseconds.

    Attributes:
        id, engine, service, model, host: as its spans name them.
        version: of vLLM.
        served: the name under which vLLM serves the model, the label `model_name` of vLLM's own metrics.
        first, highest: the lowest and the highest sequence number received.
        received: how many events arrived.
        dropped: how many events the recorder says it dropped.
        closed: whether the recorder announced that it is closing.
        gaps: the sequence numbers that have not arrived.
        connectors: names of the connectors it records.
        last_ns: end of its latest event, by the recorder's clock.
        heard_ns: arrival of its latest span, by this machine's clock.
        lag_ns: from the end of the latest event to its arrival.
    """

    id: str
    engine: str
    service: str
    model: str
    version: str
    host: str
    served: str
    first: int
    highest: int
    received: int = 0
    dropped: int = 0
    closed: bool = False
    gaps: Gaps = field(default_factory=Gaps)
    connectors: set[str] = field(default_factory=set)
    last_ns: int = 0
    heard_ns: int = 0
    lag_ns: int = 0

    @classmethod
    def of(cls, event: Event, resource: Mapping[str, Any]) -> RecorderState:
        """The state of the recorder that sent `event`, before the event is counted."""

        def text(key: str) -> str:
            return str(resource.get(key, ""))

        return cls(
            id=event.recorder,
            engine=event.engine,
            service=text("service.name"),
            model=text(semconv.MODEL.key),
            version=text(semconv.ENGINE_VERSION.key),
            host=text("host.name"),
            served=text(semconv.SERVED_MODEL.key),
            first=event.sequence,
            highest=event.sequence,
        )

    def count(self, event: Event, *, heard_ns: int) -> int | None:
        """Count an event that arrived at `heard_ns`. Returns how many more events a heartbeat reports as dropped, and None
        for any other event."""
        self.received += 1
        self.gaps.enter(event.sequence, event.end_ns)
        self.first = min(self.first, event.sequence)
        self.highest = max(self.highest, event.sequence)
        self.heard_ns = heard_ns
        if event.end_ns >= self.last_ns:
            self.last_ns, self.lag_ns = event.end_ns, max(0, heard_ns - event.end_ns)
        if event.connector:
            self.connectors.add(event.connector)
        if not isinstance(event, Heartbeat):
            return None
        before, self.dropped = self.dropped, max(self.dropped, event.recorder_dropped)
        self.closed = event.recorder_closed
        return self.dropped - before

    @property
    def missing(self) -> int:
        """Events between the first and the highest sequence number that have not arrived (yet)."""
        return self.highest - self.first + 1 - self.received

    def as_dict(self) -> dict[str, Any]:
        """The state as JSON-ready data."""
        names = (
            "id", "engine", "service", "model", "version", "host", "received", "dropped", "missing", "closed", "last_ns",
            "lag_ns",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "connectors": sorted(self.connectors)}


@dataclass(slots=True, kw_only=True)
class EngineState:
    """The state of an engine.

    Attributes:
        engine: vLLM's engine id.
        info: values of the labels `INFO`.
        heard_ns: arrival of its latest span, by this machine's clock; Unix nanoseconds.
        recorders: how many of its recorders have not closed.
        outstanding: events whose sequence number is known and that have not arrived (yet).
        open_loads: asynchronous loads that have not been received.
        open_load_oldest_ns: age of the oldest open load by the engine's own clock. An engine that has fallen silent does
            not age.
        kept_requests: requests that have ended and whose blocks the connector still holds.
        kept_blocks: how many blocks those are, where the recorder names them.
        kept_oldest_ns: time since the oldest of those requests ended, by the engine's own clock.
    """

    engine: str
    info: tuple[str, ...] = ("", "", "")
    heard_ns: int = 0
    recorders: int = 0
    outstanding: int = 0
    open_loads: int = 0
    open_load_oldest_ns: int = 0
    kept_requests: int = 0
    kept_blocks: int = 0
    kept_oldest_ns: int = 0


def engine_states(recorders: Iterable[RecorderState], detector: Detector) -> list[EngineState]:
    """The state of every engine that has a recorder."""
    states: dict[str, EngineState] = {}
    for recorder in recorders:
        state = states.setdefault(recorder.engine, EngineState(engine=recorder.engine))
        if recorder.heard_ns >= state.heard_ns:
            state.heard_ns = recorder.heard_ns
            state.info = (recorder.served or recorder.model, recorder.service, recorder.version)
        state.recorders += not recorder.closed
        state.outstanding += recorder.missing
    for account, now_ns in detector.waiting():
        waiting = states.get(account.engine)
        if waiting is None:
            continue
        evidence = account.evidence
        if evidence.loading is not None and account.ended_ns is None:
            waiting.open_loads += 1
            waiting.open_load_oldest_ns = max(waiting.open_load_oldest_ns, now_ns - evidence.loading.end_ns)
        if evidence.end is not None:
            waiting.kept_requests += 1
            waiting.kept_blocks += len(evidence.end.blocks_ids or evidence.blocks or ())
            waiting.kept_oldest_ns = max(waiting.kept_oldest_ns, now_ns - evidence.end.end_ns)
    return list(states.values())
