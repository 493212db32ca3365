"""An in-memory exporter, for runs that judge their own events in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from kvtrail.connector.recording import recorder
from kvtrail.connector.recording.encoder import Encoder, in_minute
from kvtrail.connector.recording.exporter import Exporter
from kvtrail.connector.recording.ring import EventTuple, Identity, numbers_of
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, FIELDS, STEP_FIELDS, Event, place
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import protobuf, steps

BATCH = 512
"""Events per OTLP request, as a recorder sends them."""
FLUSH_S = 60.0
_HEARTBEAT = FIELDS[semconv.Kind.HEARTBEAT]
_STEP = place(semconv.Kind.HEARTBEAT, "scheduler_step")


class InMemoryExporter(Exporter):
    """Holds what one recorder exports, in its order."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.is_kvtrail = True
        self._held: list[EventTuple] = []
        self._sealed = False
        self._common: dict[tuple[bytes, Identity], dict[str, Any]] = {}

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._resource, self._span_id_base, self._base_ns = dict(resource), span_id_base, base_ns

    def send(self, events: Sequence[EventTuple]) -> bool:
        if not self._sealed:
            self._held += events
        return True

    def close(self) -> None:
        """Nothing is open."""

    def seal(self, *, later_s: int) -> None:
        """End the history with heartbeats for `later_s` seconds after the last event, in which the scheduler goes on making
        steps, instead of the recorder's own end: what is still awaited then is overdue. With 0 it ends there, as that of an
        engine that has died."""
        self._sealed = True
        if not self._held:
            return
        (root, *_), sequence = self._held[-1][2:4]
        sequence += numbers_of(self._held[-1]) - 1
        last_ns = max(end_ns for *_, end_ns, _, _ in self._held)
        kind, nobody = semconv.Kind.HEARTBEAT.value, (root, b"", "", True)
        steps = [values[_STEP] for recorded, *_, values in self._held if recorded == kind and values[_STEP] is not None]
        for after_s in range(0, later_s + 1, int(recorder.HEARTBEAT_S)):
            sequence, at_ns = sequence + 1, last_ns + after_s * 10**9
            said: list[Any] = [sequence, 0, False, *(None,) * (len(_HEARTBEAT) - 3)]
            if steps:  # the scheduler's own recorder
                said[_STEP] = steps[-1] + 1 + after_s
            self._held.append((kind, b"", nobody, sequence, 0, 0, at_ns, at_ns, None, tuple(said)))

    def events(self) -> list[Event]:
        """The events, as encoding them as OTLP and decoding them again would give them, but faster."""
        return [event for each in self._held for event in self._events(each)]

    def spans(self) -> list[Span]:
        """The spans, as a tracer would receive them."""
        encoder = Encoder(self._resource, self._span_id_base, self._base_ns)
        payloads = encoder.requests(self._held, BATCH)
        return [span for p in payloads for span in protobuf.spans(p)]

    def _events(self, recorded: EventTuple) -> Iterator[Event]:
        if recorded[0] != semconv.STEP_SPAN:
            yield self._event(recorded)
            return
        _, source, identity, sequence, _, _, start_ns, end_ns, _, values = recorded
        columns = {a.key: value for a, value in zip(STEP_FIELDS, values, strict=True) if value is not None}
        columns[semconv.SEQUENCE.key] = sequence
        for _, row in steps.apart(self._span_id(sequence), columns):
            number, epoch = row[semconv.REQUEST_SEQUENCE.key], row[semconv.EPOCH.key]
            own = tuple(row.get(attribute.key) for attribute in FIELDS[semconv.Kind.SCHEDULE])
            request, sampled = row[semconv.REQUEST_ID.key], row.get(semconv.SAMPLED.key, True)
            owner = (self._minutes_root(identity, end_ns), b"", request, sampled)
            yield self._event(
                (
                    semconv.Kind.SCHEDULE.value, source, owner, row[semconv.SEQUENCE.key], number, epoch,
                    start_ns, end_ns, None, own,
                )
            )  # fmt: skip

    def _minutes_root(self, nobody: Identity, end_ns: int) -> bytes:
        return in_minute(nobody[0], (self._base_ns + end_ns) // semconv.ENGINE_NS)

    def _span_id(self, sequence: int) -> str:
        return f"{self._span_id_base + sequence & 0xFFFFFFFFFFFFFFFF:016x}"

    def _event(self, recorded: EventTuple) -> Event:
        kind, source, identity, sequence, request_sequence, epoch, start_ns, end_ns, error, values = recorded
        if not identity[2]:
            identity = (self._minutes_root(identity, end_ns), *identity[1:])
        common = self._common.get((source, identity))
        if common is None:
            common = self._common[source, identity] = self._decoded(source, identity)
        root, common = common["root"], common["fields"]
        fields = zip(FIELDS[semconv.Kind(kind)], values, strict=True)
        return CLASSES[kind](
            **common,
            sequence=sequence,
            request_sequence=request_sequence if common.get("request") else 0,
            epoch=epoch if common.get("request") else 0,
            start_ns=self._base_ns + start_ns,
            end_ns=self._base_ns + end_ns,
            error=error,
            span_id=root if kind in semconv.ROOTS else self._span_id(sequence),
            **{attribute.field: value for attribute, value in fields if value is not None},
        )

    def _decoded(self, source: bytes, identity: Identity) -> dict[str, Any]:
        """The fields that all events of one request from one connector share."""
        root, _, request_id, sampled = identity
        known = protobuf.attributes(ProtoSpan.FromString(source).attributes)
        fields = {common.field: known[common.key] for common in semconv.COMMON if common.key in known}
        fields |= {
            "engine": self._resource[semconv.ENGINE_ID.key],
            "recorder": self._resource[semconv.RECORDER_ID.key],
            "block_size": self._resource.get(semconv.BLOCK_SIZE.key),
            "capabilities": self._resource.get(semconv.CAPABILITIES.key),
            "groups": self._resource.get(semconv.GROUPS.key),
            "scheduler_async": self._resource.get(semconv.ASYNC_SCHEDULING.key),
            "patience": self._resource.get(semconv.PATIENCE.key),
            "sampled_only": self._resource.get(semconv.SAMPLED_ONLY.key),
            "launch": self._resource.get(semconv.LAUNCH.key),
            "cache_identity": self._resource.get(semconv.CACHE_IDENTITY.key),
            "trace_id": root[:16].hex(),
        }
        if request_id:
            fields |= {"request": request_id, "external": semconv.external_id(request_id)}
        if not sampled:
            fields[semconv.SAMPLED.field] = False
        return {"root": root[16:].hex(), "fields": {"connector": "", "role": "", "rank": 0, **fields}}


@contextmanager
def exporters() -> Iterator[list[InMemoryExporter]]:
    """Recorders that are made inside export to memory; yields the list of their exporters. They are closed at the end."""
    made: list[InMemoryExporter] = []

    def one_more() -> InMemoryExporter:
        made.append(InMemoryExporter())
        return made[-1]

    with recorder.exporting_to(one_more):
        yield made


def flush() -> None:
    """Wait until everything that was recorded has been exported.

    Raises:
        RuntimeError: something was dropped, or the recorder's thread does not answer.
    """
    for each in recorder.recorders():
        if not each.flush(FLUSH_S) or each.dropped:
            raise RuntimeError(f"kvtrail: {each.dropped} events of this run were dropped; its history has gaps")
