"""OTLP over HTTP: the route for protobuf and JSON, plain or gzip.

A body is read only after its sender has presented a token, and after memory for its declared length is reserved.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status
from starlette.requests import ClientDisconnect

from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.intake import ANNOUNCED, Busy, Intake, TooLarge
from kvtrail.tracer.store import StoreError

WORKERS = 16
"""Maximum number of bodies that are decompressed and parsed at once, including large ones that wait."""
MAX_WAITING = 256
"""Maximum number of bodies that are being received or wait."""
LARGEST_WAITING = 16
"""Bodies of the maximum size that fit into the memory for bodies that are being received or wait."""
AGAIN = (429, 503)
"""Status codes after which a sender retries."""


class _Room:
    """The bodies that are being received or wait: their number and reserved bytes. Used only on the event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.bodies = 0
        self._free = most_bytes

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Reserve memory for a body. Raises Busy if there is none."""
        if self.bodies >= MAX_WAITING or size > self._free:
            raise Busy
        self.bodies += 1
        self._free -= size
        try:
            yield
        finally:
            self.bodies -= 1
            self._free += size


def http_routes(intake: Intake, metrics: Metrics, limits: Limits) -> APIRouter:
    """The route `POST /v1/traces`."""
    router = APIRouter(tags=["OTLP"])
    room, workers = _Room(LARGEST_WAITING * limits.request_bytes), CapacityLimiter(WORKERS)
    metrics.watch("http_requests_waiting", lambda: room.bodies)

    @router.post("/v1/traces", summary="OTLP/HTTP trace export (protobuf or JSON, plain or gzip)")
    async def traces(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()

        def refused(code: int, why: str, error: object, *, close: bool = False) -> Response:
            metrics.count_rejected("http", why)
            return _refused(code, str(error), content_type, close=close)

        if content_type not in ("application/x-protobuf", "application/json"):
            wanted = f"content type {content_type!r}: send application/x-protobuf or application/json"
            return refused(415, "malformed", wanted, close=True)
        is_json = content_type == "application/json"
        encoding = request.headers.get("content-encoding", "").strip().lower()
        body = bytearray()
        try:
            with room.taken(_length(request, limits.request_bytes)):
                async with asyncio.timeout(limits.receive_seconds):
                    await _read(request, body, limits.request_bytes)
                take = partial(intake.take, body, encoding, transport="http", is_json=is_json)
                answer = await to_thread.run_sync(take, limiter=workers)
        except Busy as error:
            return refused(429, "busy", error, close=True)
        except TimeoutError:
            late = f"the body did not arrive within {limits.receive_seconds} s"
            return refused(408, "slow", late, close=True)
        except ClientDisconnect:
            return refused(400, "cut_off", "the sender went away", close=True)
        except TooLarge as error:
            return refused(413, "too_large", error, close=True)
        except StoreError as error:
            return refused(503, "store", error)
        except (ValueError, RecursionError) as error:
            return refused(400, "malformed", error)
        finally:
            body.clear()  # free it even if something still refers to it
        encoded = MessageToJson(answer, indent=None) if is_json else answer.SerializeToString()
        return Response(encoded, media_type=content_type, headers=ANNOUNCED)

    return router


def _length(request: Request, most: int) -> int:
    """The declared length of a body, or the maximum if it is not declared. Raises TooLarge."""
    length = int(request.headers.get("content-length", most))
    if length > most:
        raise TooLarge(most)
    return length


async def _read(request: Request, body: bytearray, most: int) -> None:
    """Read a body, still compressed. Raises TooLarge."""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(most)


def _refused(code: int, message: str, content_type: str, *, close: bool = False) -> Response:
    """An error as OTLP/HTTP defines it: a `google.rpc.Status` in the request's encoding. `close` ends the connection without
    reading the rest of the body."""
    headers = {"retry-after": str(RETRY_S)} if code in AGAIN else {}
    if close:
        headers["connection"] = "close"
    if content_type == "application/x-protobuf":
        body: bytes | str = Status(message=message).SerializeToString()
    else:
        body, content_type = json.dumps({"message": message}), "application/json"
    return Response(body, status_code=code, media_type=content_type, headers=headers)
