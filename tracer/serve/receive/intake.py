"""From an encoded request, as a sender has it, to its acknowledgement: it is unpacked, cut where it is long, and
given to the pipeline.

Requests take memory and time by what they hold, so one heavy request at a time is unpacked, parsed and judged. Light ones do
not wait for those that wait for their turn.
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
"""Unpacked: more than a recorder sends at a time, unless one event is as large."""
HEAVY_WAITING = 8
"""Heavy requests that may wait for their turn."""
MAX_OBJECTS = 2**18
"""Objects and lists of a request in JSON: a span of twenty attributes has forty or so."""
PART_BYTES = HEAVY_BYTES
"""Of spans that are judged and stored together: what a recorder sends at a time is one part."""


class TooLarge(ValueError):
    """A request of more bytes than are taken."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes in one request: send smaller batches")


class Busy(RuntimeError):
    """Too much waits already."""

    def __init__(self) -> None:
        super().__init__(f"too much waits to be stored: send it again after {RETRY_S} s")


class Intake:
    """Hands requests to the pipeline, from any thread."""

    def __init__(self, pipeline: Pipeline, *, most_bytes: int) -> None:
        """`most_bytes` is how long a request may be, unpacked."""
        self._pipeline = pipeline
        self._most_bytes = most_bytes
        self._one_heavy = threading.Lock()
        self._heavy = threading.Semaphore(HEAVY_WAITING + 1)

    def take(
        self, body: bytes | bytearray, encoding: str, *, transport: str, is_json: bool = False
    ) -> ExportTraceServiceResponse:
        """Store an encoded request; the acknowledgement counts the spans that could not be read.

        Raises:
            TooLarge: it is too long when it is unpacked.
            Busy: it is heavy, and too many of these wait.
            StoreError: not all of it was stored; the sender should try again.
            ValueError: it is no request, none of its spans can be read, or one of a request in JSON cannot; MalformedOtlp is
                one.
        """
        try:
            return self._taken(body, encoding, transport, is_json=is_json)
        except Exception as error:
            # A traceback keeps the request in memory, until cycles are looked for: that is seldom.
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
        """That of a heavy request. Raises Busy."""
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
        """`Pipeline.ingest`. At an error that nobody expects, the sender is asked to try again: nothing was acknowledged."""
        try:
            return self._pipeline.ingest(payload, transport=transport)
        except (MalformedOtlp, StoreError):
            raise
        except Exception as error:
            self._pipeline.errors.count(Where.INGEST, error, "a batch is not stored")
            raise StoreError(f"an error in kvtrail itself: {type(error).__name__}") from error


def _loaded(text: bytes) -> Any:
    """JSON, loaded. Raises ValueError, and not one of its own, which would hold all of the text."""
    if text.count(b"{") + text.count(b"[") > MAX_OBJECTS:
        raise ValueError(f"more than {MAX_OBJECTS} objects and lists in one request: send smaller batches")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(str(error)) from None


def _unpacked(body: bytes | bytearray, encoding: str, most: int) -> bytes | None:
    """A body unpacked; None if it is longer than `most`. Raises ValueError for damage, and for an unknown encoding."""
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
