"""Recorders with the test itself as their tracer: a transport in memory, and what is recorded through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from processes import SLOW_S

from kvtrail.connector.recording.exporter import InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.send_failures import SendFailure
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest import decode, protobuf


class MemoryTransport:
    """Collects what it is sent; it can refuse, and it can hang.

    Attributes:
        accepts: whether anything is accepted.
        refused: set when something was refused.
        open: while it is not set, `send` hangs.
    """

    endpoint = "memory"
    is_kvtrail = True
    failure = SendFailure.UNKNOWN

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.accepts = True
        self.refused = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def send(self, payload: bytes) -> bool:
        self.open.wait()
        if not (self.accepts and self.wants(payload)):
            self.refused.set()
            return False
        self.payloads.append(payload)
        return True

    def wants(self, payload: bytes) -> bool:
        """Whether this request is accepted."""
        return True

    def await_refusal(self) -> None:
        """Wait until something has been refused since this was last asked."""
        assert self.refused.wait(SLOW_S)
        self.refused.clear()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nothing gets through meanwhile, and so the recorder's thread waits. Else it may number a heartbeat between two
        events."""
        self.open.clear()
        yield
        self.open.set()

    def close(self) -> None:
        self.open.set()

    def events(self) -> list[Event]:
        spans = [s for p in self.payloads for s in protobuf.spans(p)]
        return [event for span in spans if (event := decode.from_span(span)) is not None]

    def lookups(self) -> list[Event]:
        return [event for event in self.events() if event.kind == Kind.LOOKUP]


def a_request(request_id: str = "cmpl-1-0-0123abcd", **changes: Any) -> Any:
    """A request as vLLM's scheduler knows it."""
    return SimpleNamespace(
        **{"request_id": request_id, "num_preemptions": 0, "trace_headers": None, "num_computed_tokens": 0, **changes}
    )


def a_recorder(transport: MemoryTransport) -> Recorder:
    return Recorder("engine", {}, InProcessExporter(transport))


def record(recorder: Recorder, request: Any, count: int = 1) -> None:
    """Record this number of lookups of a request."""
    for _ in range(count):
        values = (700, 0, 0, 0, False, *(None,) * 6)
        recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(request), 1, 2, values)
