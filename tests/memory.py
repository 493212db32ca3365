"""A transport in memory, for recorders whose tracer is the test itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.tracer.ingest import decode, otlp
from kvtrail.tracer.model.events import Event


class Memory:
    """It keeps what it is given; it can refuse, and it can hang."""

    endpoint = "memory"

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.accepts = True
        self.open = threading.Event()
        self.open.set()

    def send(self, payload: bytes) -> bool:
        self.open.wait()
        if self.accepts:
            self.payloads.append(payload)
        return self.accepts

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nothing passes meanwhile, and so the recorder's thread waits. Else it may number a sign of life of its own between
        two events."""
        self.open.clear()
        yield
        self.open.set()

    def close(self) -> None:
        self.open.set()

    def events(self) -> list[Event]:
        spans = [s for p in self.payloads for s in otlp.spans(ExportTraceServiceRequest.FromString(p))]
        return [event for span in spans if (event := decode.from_span(span)) is not None]
