"""Turns: one heavy request at a time is unpacked, parsed and judged, so that light ones wait for one at most."""

from __future__ import annotations

import gzip
import io
import json
import threading
import zlib
from typing import Any

from kvtrail.tracer.ingest import otlp_json, weight
from kvtrail.tracer.ingest.decode import MalformedOtlp, Refused
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError

HEAVY_BYTES = 2**19
"""Unpacked: more than a recorder sends at a time."""
HEAVY = weight.MOST // 8
"""The weight from which a request is heavy, however short."""


class TooLarge(ValueError):
    """A request of more bytes than are taken."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes in one request: send smaller batches")


class Turns:
    """Hands requests to the pipeline."""

    def __init__(self, pipeline: Pipeline, *, most_bytes: int) -> None:
        """`most_bytes` is how long a request may be, unpacked."""
        self._pipeline = pipeline
        self._most_bytes = most_bytes
        self._one_heavy = threading.Lock()

    def take_light(
        self, body: bytes | bytearray, encoding: str, *, transport: str, is_json: bool = False
    ) -> list[Refused] | None:
        """Store an encoded request, and return the spans that could not be read; None if it is heavy, and waits for its turn:
        nothing is stored of it.

        Raises:
            TooLarge: it is too long when it is unpacked.
            TooMuch: it has too many parts.
            StoreError: nothing was stored; the sender should try again.
            ValueError: it is no request, or none of its spans can be read; MalformedOtlp is one.
        """
        try:
            return self._light(body, encoding, transport, is_json=is_json)
        except Exception as error:
            raise _bare(error) from None

    def take_heavy(
        self, body: bytes | bytearray, encoding: str, *, transport: str, is_json: bool = False
    ) -> list[Refused]:
        """As `take_light`, of a heavy one, once those before it are done."""
        try:
            return self._heavy(body, encoding, transport, is_json=is_json)
        except Exception as error:
            raise _bare(error) from None

    def _light(self, body: bytes | bytearray, encoding: str, transport: str, *, is_json: bool) -> list[Refused] | None:
        plain = _unpacked(body, encoding, min(HEAVY_BYTES, self._most_bytes))
        if plain is None or _is_heavy(plain, is_json=is_json):
            return None
        return self._parsed(plain, transport, is_json=is_json)

    def _heavy(self, body: bytes | bytearray, encoding: str, transport: str, *, is_json: bool) -> list[Refused]:
        with self._one_heavy:
            plain = _unpacked(body, encoding, self._most_bytes)
            if plain is None:
                raise TooLarge(self._most_bytes)
            _weigh(plain, is_json=is_json)
            return self._parsed(plain, transport, is_json=is_json)

    def _parsed(self, plain: bytes, transport: str, *, is_json: bool) -> list[Refused]:
        refused: list[Refused | None] = []
        if is_json:
            plain, no_otlp = otlp_json.salvaged(_loaded(plain))
            weight.of(plain)
            refused.append(no_otlp)
        refused.append(self._ingested(plain, transport))
        return [each for each in refused if each is not None]

    def _ingested(self, payload: bytes, transport: str) -> Refused | None:
        """`Pipeline.ingest`. At an error that nobody expects, the sender is asked to try again: nothing was acknowledged."""
        try:
            return self._pipeline.ingest(payload, transport=transport)
        except (MalformedOtlp, StoreError):
            raise
        except Exception as error:
            self._pipeline.errors.count(Where.INGEST, error, "a batch is not stored")
            raise StoreError(f"an error in kvtrail itself: {type(error).__name__}") from error


def _bare(error: Exception) -> Exception:
    """An error without its traceback, which keeps the request in memory, until cycles are looked for: that is seldom."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _is_heavy(plain: bytes, *, is_json: bool) -> bool:
    """Whether a request has to wait for its turn. It is not looked at for longer than it takes to know."""
    try:
        _weigh(plain, HEAVY, is_json=is_json)
    except weight.TooMuch:
        return True
    return False


def _weigh(plain: bytes, most: int = weight.MOST, *, is_json: bool) -> None:
    """Raises TooMuch if a request weighs more."""
    (weight.of_json if is_json else weight.of)(plain, most)


def _loaded(text: bytes) -> Any:
    """JSON, loaded. Raises ValueError, and not one of its own, which would hold all of the text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(str(error)) from None


def encoding_of(message: bytes) -> str:
    """How a message is compressed that gRPC's library has not unpacked, since that would unpack any size: as its first bytes
    say. No OTLP begins like this."""
    if message.startswith(b"\x1f\x8b"):
        return "gzip"
    is_zlib = len(message) > 1 and message[0] == 0x78 and int.from_bytes(message[:2], "big") % 31 == 0
    return "deflate" if is_zlib else ""


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
