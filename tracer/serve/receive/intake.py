"""Takes an encoded request to its acknowledgement: decompresses it, splits it if it is long, and passes it to the pipeline.

The memory and time of a request depend on its content, so one large request at a time is decompressed, parsed and judged.
Small requests do not wait for queued large ones.
"""

from __future__ import annotations

import gzip
import io
import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvtrail import __version__
from kvtrail.tracer.events.semconv import RECEIVER
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.decode import MalformedOtlp, Refused
from kvtrail.tracer.ingest.protobuf import divided
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.limits import RETRY_S
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError

ANNOUNCED = {RECEIVER: __version__}
"""The header, over either protocol, by which a recorder recognizes kvtrail."""
HEAVY_BYTES = 2**19
"""Decompressed size from which a request is large: more than a recorder sends at once, unless a single event is as large."""
HEAVY_WAITING = 8
"""Maximum number of large requests in the queue."""
MAX_OBJECTS = 2**18
"""Maximum number of objects and lists in a JSON request: a span with twenty attributes has about forty."""
PART_BYTES = HEAVY_BYTES
"""Bytes of spans that are judged and stored together: a recorder's request is one part."""


class TooLarge(ValueError):
    """A request that exceeds the maximum size."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes in one request: send smaller batches")


class Busy(RuntimeError):
    """Too many requests are waiting."""

    def __init__(self) -> None:
        super().__init__(f"too many requests wait to be stored: retry after {RETRY_S} s")


class Intake:
    """Passes requests to the pipeline, from any thread."""

    def __init__(self, pipeline: Pipeline, *, most_bytes: int) -> None:
        """`most_bytes` is the maximum size of a decompressed request."""
        self._pipeline = pipeline
        self._most_bytes = most_bytes
        self._one_heavy = threading.Lock()
        self._heavy = threading.Semaphore(HEAVY_WAITING + 1)

    def take(
        self, body: bytes | bytearray, encoding: str, *, transport: str, is_json: bool = False
    ) -> ExportTraceServiceResponse:
        """Store an encoded request; the acknowledgement counts the spans that could not be read.

        Raises:
            TooLarge: its decompressed size exceeds the limit.
            Busy: it is large, and too many large requests wait.
            StoreError: not all of it was stored; the sender should try again.
            ValueError: it is not an OTLP request, none of its spans can be read, or one span of a JSON request cannot be
                read; MalformedOtlp is a subclass.
        """
        try:
            return self._taken(body, encoding, transport, is_json=is_json)
        except Exception as error:
            # A traceback would keep the request in memory until the next garbage collection, which is rare.
            error.__context__ = error.__cause__ = None
            raise error.with_traceback(None) from None

    def _taken(
        self, body: bytes | bytearray, encoding: str, transport: str, *, is_json: bool
    ) -> ExportTraceServiceResponse:
        plain = _unpacked(body, encoding, min(HEAVY_BYTES, self._most_bytes))
        if plain is not None:
            return self._stored(plain, transport, is_json=is_json)
        with self._turn():
            plain = _unpacked(body, encoding, self._most_bytes)
            if plain is None:
                raise TooLarge(self._most_bytes)
            return self._stored(plain, transport, is_json=is_json)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock of large requests. Raises Busy."""
        if not self._heavy.acquire(blocking=False):
            raise Busy
        try:
            with self._one_heavy:
                yield
        finally:
            self._heavy.release()

    def _stored(self, plain: bytes, transport: str, *, is_json: bool) -> ExportTraceServiceResponse:
        if is_json:
            plain = otlp_json.to_protobuf(_loaded(plain))
        refused = [self._ingested(part, transport) for part in divided(plain, most_bytes=PART_BYTES)]
        answer = ExportTraceServiceResponse()
        for each in filter(None, refused):
            answer.partial_success.rejected_spans += each.spans
            answer.partial_success.error_message = each.reason
        return answer

    def _ingested(self, payload: bytes, transport: str) -> Refused | None:
        """Call `Pipeline.ingest`. At an unexpected error, the sender is asked to try again: nothing was acknowledged."""
        try:
            return self._pipeline.ingest(payload, transport=transport)
        except (MalformedOtlp, StoreError):
            raise
        except Exception as error:
            self._pipeline.errors.count(Where.INGEST, error, "a batch is not stored")
            raise StoreError(f"an error in kvtrail itself: {type(error).__name__}") from error


def _loaded(text: bytes) -> Any:
    """Parse JSON. Raises ValueError, never JSONDecodeError, which would keep the whole text in memory."""
    if text.count(b"{") + text.count(b"[") > MAX_OBJECTS:
        raise ValueError(f"more than {MAX_OBJECTS} objects and lists in one request: send smaller batches")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(str(error)) from None


def _unpacked(body: bytes | bytearray, encoding: str, most: int) -> bytes | None:
    """The decompressed body; None if it is longer than `most`. Raises ValueError for damaged data or an unknown encoding."""
    if encoding in ("", "identity"):
        return bytes(body) if len(body) <= most else None
    try:
        if encoding == "gzip":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                plain = file.read(most + 1)
        elif encoding == "deflate":
            plain = zlib.decompressobj().decompress(body, most + 1)
        else:
            raise ValueError(f"content encoding {encoding!r}: send gzip, or no encoding")
    except (OSError, zlib.error, EOFError) as error:
        raise ValueError(str(error)) from error
    return plain if len(plain) <= most else None
