"""An in-memory exporter, for runs that judge their own events in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kvtrail.connector.recording import recorder
from kvtrail.connector.recording.encoder import Encoder
from kvtrail.connector.recording.exporter import Exporter
from kvtrail.connector.recording.ring import EventTuple, numbers_of
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, Event, place
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import protobuf

BATCH = 512
"""Number of events per OTLP request, as in a recorder's export."""
FLUSH_S = 60.0
_HEARTBEAT = FIELDS[semconv.Kind.HEARTBEAT]
_STEP = place(semconv.Kind.HEARTBEAT, "scheduler_step")


class InMemoryExporter(Exporter):
    """Holds the events that one recorder exports, in order."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.is_kvtrail = True
        self._held: list[EventTuple] = []
        self._payloads: list[bytes] = []
        """The same events, as the export process would send them."""
        self._sealed = False

    def __getstate__(self) -> dict[str, Any]:
        """The state without the encoder, which cannot be pickled; all events are encoded already."""
        return {name: value for name, value in vars(self).items() if name != "_encoder"}

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._encoder = Encoder(dict(resource), span_id_base, base_ns)

    def send(self, events: Sequence[EventTuple]) -> bool:
        """
        Raises:
            Exception: as for `Exporter.send`: events that cannot be encoded are not held.
        """
        if not self._sealed:
            self._payloads += [*self._encoder.requests(events, BATCH)]
            self._held += events
        return True

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def seal(self, *, later_s: int) -> None:
        """End the history with heartbeats for `later_s` seconds after the last event, instead of the recorder's own end. The
        scheduler makes steps in this time, so everything that is still pending becomes overdue. With 0, the history ends at
        the last event, like that of a dead engine."""
        was_sealed, self._sealed = self._sealed, True
        if was_sealed or not self._held:
            return
        (root, *_), sequence = self._held[-1][2:4]
        sequence += numbers_of(self._held[-1]) - 1
        last_ns = max(end_ns for *_, end_ns, _, _ in self._held)
        kind, nobody = semconv.Kind.HEARTBEAT.value, (root, b"", "", True)
        beats: list[EventTuple] = []
        steps = [values[_STEP] for recorded, *_, values in self._held if recorded == kind and values[_STEP] is not None]
        for after_s in range(0, later_s + 1, int(recorder.HEARTBEAT_S)):
            sequence, at_ns = sequence + 1, last_ns + after_s * 10**9
            said: list[Any] = [sequence, 0, False, *(None,) * (len(_HEARTBEAT) - 3)]
            if steps:  # the scheduler's own recorder
                said[_STEP] = steps[-1] + 1 + after_s
            beats.append((kind, b"", nobody, sequence, 0, 0, at_ns, at_ns, None, tuple(said)))
        self._payloads += self._encoder.requests(beats, BATCH)

    def events(self) -> list[Event]:
        """The events, as a tracer decodes them."""
        decoder = protobuf.ProtobufDecoder()
        return [event for payload in self._payloads for event in decoder.decoded(payload).events]

    def spans(self) -> list[Span]:
        """The spans, as a tracer decodes them."""
        return [span for payload in self._payloads for span in protobuf.spans(payload)]


@contextmanager
def exporters() -> Iterator[list[InMemoryExporter]]:
    """Let recorders that are made inside export to memory; yields the list of their exporters. At the end, the recorders are
    closed."""
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
