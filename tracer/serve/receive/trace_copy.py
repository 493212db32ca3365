"""The trace file that `kvtrail serve --trace-file` writes: a copy of what was stored, on a thread of its own.

Ingest never waits for it. What is too much at a time, or cannot be written, is missing in the copy, counted and logged.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path

from kvtrail.tracer.ingest.trace_file import TraceWriter
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.limits import MIB
from kvtrail.tracer.serve.metrics.metrics import Metrics

logger = logging.getLogger("kvtrail")

MAX_WAITING_BYTES = 32 * MIB


class TraceCopy:
    """Appends requests to a trace file."""

    def __init__(self, path: Path, metrics: Metrics) -> None:
        """Raises OSError when the file cannot be opened for appending."""
        self._writer = TraceWriter(path)
        self._lost, self._errors = metrics.trace_file_lost, metrics.internal_errors
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._closing = False
        self._changed = threading.Condition()
        metrics.trace_file_waiting.set_function(lambda: self._bytes)
        self._thread = threading.Thread(target=self._run, name="trace-file", daemon=True)
        self._thread.start()

    def write(self, payload: bytes) -> None:
        """Leave a request in binary form to the thread."""
        with self._changed:
            if is_room := self._bytes + len(payload) <= MAX_WAITING_BYTES:
                self._waiting.append(payload)
                self._bytes += len(payload)
                self._changed.notify()
        if not is_room:
            self._lose("the disk or the processor is too slow for it")

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                payload = self._waiting[0]
            with self._errors.caught(Where.TRACE_FILE, "the trace file misses a request"):
                try:
                    self._writer.write(payload)
                except OSError as error:
                    self._lose(str(error))
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(payload)

    def _lose(self, why: str) -> None:
        self._lost.inc()
        logger.error("the trace file misses a request: %s", why)
