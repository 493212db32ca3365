"""OTLP receivers: a gRPC server, and the HTTP route for protobuf and JSON, plain or gzip.

Both acknowledge a batch only after the pipeline has stored it, and ask the sender to retry if it could not, or if too many
wait already. Spans that cannot be read are named in the acknowledgement (OTLP's partial success), and the others are stored.
Each answer says that it is a kvtrail's: recorders then send heartbeats.

A fleet that is faster than the pipeline is held back by waiting: each of its exporters sends one batch at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import ClientDisconnect

from kvtrail import __version__
from kvtrail.tracer.events.semconv import RECEIVER
from kvtrail.tracer.ingest.decode import MalformedOtlp, Refused
from kvtrail.tracer.ingest.weight import TooMuch
from kvtrail.tracer.serve.access import Access, Tls, TokenInterceptor
from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics, Rejected
from kvtrail.tracer.serve.receive.gate import MAX_UNFINISHED, TOO_LARGE, Gate
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.turns import TooLarge, Turns, encoding_of
from kvtrail.tracer.store import StoreError

_ANNOUNCED = {RECEIVER: __version__}
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
HTTP_WORKERS = 16
"""Bodies that are unpacked and parsed at a time, besides one heavy one: those that wait for their turn take no worker from
light ones."""
HEAVY_PART = 2
"""One in this many places may be taken by heavy requests that wait for their turn. The others are for light ones."""
COMING_SHARE = 0.75
"""Of the places over HTTP, as many may be taken by bodies that still come. A fleet that posts at once is no attack."""
AGAIN = (429, 503)
"""Answers of HTTP after which a sender tries again."""
CALLS_AT_ONCE = 16
"""Of a connection over gRPC."""
WINDOW_BYTES = 65_535
"""Of a message that come before it is known whether it is wanted."""
LONGEST_SOCKET = 90
"""Characters of a socket's path: the system takes a few more."""


class Busy(RuntimeError):
    """Too much waits already."""

    def __init__(self, why: Rejected) -> None:
        super().__init__(f"too much waits to be stored: send it again after {RETRY_S} s")
        self.why = why


class PortTaken(RuntimeError):
    """A server could not listen; the text names the address and the option that changes it."""


def address(host: str, port: int) -> str:
    """An address as it stands in a URL: that of IPv6 has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class GrpcReceiver:
    """The gRPC server, and the gate before it, on their own threads."""

    def __init__(
        self,
        pipeline: Pipeline,
        metrics: Metrics,
        listener: socket.socket,
        behind: Path,
        *,
        limits: Limits,
        most_connections: int,
        tokens: Access | None = None,
        tls: Tls | None = None,
    ) -> None:
        """
        Args:
            listener: bound to the port.
            behind: where the server's own socket is made, which only this user may open.

        Raises:
            PortTaken: it cannot be made.
        """
        self._server = _server(pipeline, metrics, limits, tokens)
        where = _short(behind)
        try:
            bound = self._server.add_insecure_port(f"unix:{where}")
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise PortTaken(f"cannot make the socket {behind} for OTLP over gRPC")
        where.chmod(0o600)
        self._behind = behind
        self._server.start()
        self._gate = Gate(
            listener,
            where,
            limits=limits,
            most_connections=most_connections,
            tls=tls,
            on_refusal=partial(metrics.count_rejected, "grpc"),
        )
        metrics.watch("grpc_connections", "Connections over gRPC.", lambda: self._gate.connections)

    def stop(self, grace: float) -> None:
        """Finish within `grace` seconds what has come, and close all connections."""
        self._server.stop(grace=grace).wait()
        self._gate.close()
        self._behind.unlink(missing_ok=True)


def _short(path: Path) -> Path:
    """A path that is short enough for a socket."""
    if len(str(path)) <= LONGEST_SOCKET:
        return path
    return Path(f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)}") / path.name


def _server(pipeline: Pipeline, metrics: Metrics, limits: Limits, tokens: Access | None) -> grpc.Server:
    rejected = partial(metrics.count_rejected, "grpc")
    turns = Turns(pipeline, most_bytes=limits.request_bytes)
    places, heavy = _Places(limits.max_waiting), _heavy_places(limits)
    metrics.watch_waiting("grpc", lambda: places.taken)

    def export(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata(tuple(_ANNOUNCED.items()))
        payload = next(messages, None)
        if payload == TOO_LARGE:
            rejected(Rejected.TOO_LARGE)
            too_large = f"a message larger than max ({limits.request_bytes} bytes): send smaller batches"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large)
        refused: list[Refused] = []
        try:
            if payload is None:
                raise MalformedOtlp("a call without a message")
            encoding = encoding_of(payload)
            with places.place():
                taken = turns.take_light(payload, encoding, transport="grpc")
                if taken is None:
                    with heavy.place():
                        taken = turns.take_heavy(payload, encoding, transport="grpc")
                refused = taken
        except Busy as error:
            rejected(error.why)
            _ask_again(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except (TooLarge, TooMuch) as error:
            rejected(Rejected.TOO_LARGE)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"larger than max: {error}")
        except StoreError as error:
            rejected(Rejected.STORE)
            _ask_again(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except ValueError as error:
            rejected(Rejected.MALFORMED)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return _accepted(refused).SerializeToString()

    server = grpc.server(
        # A thread for each call with a message that comes, and for each that waits.
        ThreadPoolExecutor(MAX_UNFINISHED + limits.max_waiting, thread_name_prefix="otlp-grpc"),
        options=[
            ("grpc.max_receive_message_length", limits.request_bytes),
            ("grpc.max_concurrent_streams", CALLS_AT_ONCE),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.bdp_probe", 0),  # which makes windows, and what is buffered, as large as a line is long
            ("grpc.per_message_decompression", 0),  # a message of 8 MiB may unpack to 8 GiB
        ],
        interceptors=[] if tokens is None else [TokenInterceptor(tokens)],
    )
    # To the server each call is a stream, and it takes its first message: only so it is read when it is asked for, and
    # not before the caller is known. Without a deserializer the method gets the bytes.
    methods = {"Export": grpc.stream_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    return server


class _Places:
    """How many requests wait to be stored."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._counting = threading.Lock()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one. Raises Busy if there is none."""
        with self._counting:
            if self.taken >= self._most:
                raise Busy(Rejected.BUSY)
            self.taken += 1
        try:
            yield
        finally:
            with self._counting:
                self.taken -= 1


def _heavy_places(limits: Limits) -> _Places:
    return _Places(max(limits.max_waiting // HEAVY_PART, 1))


def _ask_again(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> None:
    """End a call with the request to try again, as OTLP wants it: a `RetryInfo` among the details. OpenTelemetry's SDK for
    Python looks for it under a name of its own."""
    info, packed = RetryInfo(retry_delay=Duration(seconds=RETRY_S)), AnyMessage()
    packed.Pack(info)
    status = Status(code=code.value[0], message=why, details=[packed])
    context.set_trailing_metadata(
        (
            ("grpc-status-details-bin", status.SerializeToString()),
            ("google.rpc.retryinfo-bin", info.SerializeToString()),
        )
    )
    context.abort(code, why)


class _Body:
    """A body, as far as it has come, and until when it must have come."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.until = asyncio.timeout(None)
        self.given_up: Rejected | None = None


class _Bodies:
    """The bodies that are being received over HTTP, or wait to be stored: how many, and their bytes. Lives on the event
    loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._coming: list[_Body] = []
        self.count = 0
        self._bytes = 0

    @contextmanager
    def place(self) -> Iterator[_Body]:
        """A place for a body. Raises Busy if there is none."""
        if self.count >= self._limits.max_waiting:
            raise Busy(Rejected.BUSY)
        body = _Body()
        self.count += 1
        try:
            yield body
        finally:
            self.count -= 1
            self._bytes -= len(body.data)
            body.data.clear()  # whatever still refers to it

    async def read(self, request: Request, body: _Body) -> None:
        """Read a body into its place as it comes. Where all bodies are too much, the longest that still comes is given up,
        and where too many come, the first: its sender makes room for the others.

        Raises:
            TooLarge: it is too long.
            Busy: it was given up.
            TimeoutError: it did not come in time.
        """
        self._coming.append(body)
        coming = [each for each in self._coming if each.given_up is None]
        if len(coming) > max(self._limits.max_waiting * COMING_SHARE, 1):
            self._give_up(coming[0], Rejected.SLOW)
        try:
            async with asyncio.timeout(self._limits.receive_seconds) as body.until:
                async for part in request.stream():
                    body.data += part
                    self._bytes += len(part)
                    if len(body.data) > self._limits.request_bytes:
                        raise TooLarge(self._limits.request_bytes)
                    if self._bytes > self._limits.waiting_bytes:
                        self._give_up(max(self._coming, key=lambda each: len(each.data)), Rejected.MEMORY)
        except TimeoutError:
            if body.given_up is not None:
                raise Busy(body.given_up) from None
            raise
        finally:
            self._coming.remove(body)

    def _give_up(self, body: _Body, why: Rejected) -> None:
        self._bytes -= len(body.data)
        body.data = bytearray()
        body.given_up = why
        body.until.reschedule(0)


def http_routes(pipeline: Pipeline, metrics: Metrics, limits: Limits) -> APIRouter:
    """The route `POST /v1/traces`."""
    router = APIRouter(tags=["OTLP"])
    bodies, heavy = _Bodies(limits), _heavy_places(limits)
    workers, heavy_worker = CapacityLimiter(HTTP_WORKERS), CapacityLimiter(1)
    turns = Turns(pipeline, most_bytes=limits.request_bytes)
    metrics.watch_waiting("http", lambda: bodies.count)

    @router.post("/v1/traces", summary="OTLP/HTTP trace export (protobuf or JSON, plain or gzip)")
    async def traces(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()

        def refused(code: int, why: Rejected, error: object, *, close: bool = False) -> Response:
            metrics.count_rejected("http", why)
            return _refused(code, str(error), content_type, close=close)

        if content_type not in ("application/x-protobuf", "application/json"):
            wanted = f"content type {content_type!r}: send application/x-protobuf or application/json"
            return refused(415, Rejected.MALFORMED, wanted)
        is_json = content_type == "application/json"
        encoding = request.headers.get("content-encoding", "").strip().lower()
        try:
            with bodies.place() as body:
                await bodies.read(request, body)
                light = partial(turns.take_light, body.data, encoding, transport="http", is_json=is_json)
                taken = await to_thread.run_sync(light, limiter=workers)
                if taken is None:
                    whole = partial(turns.take_heavy, body.data, encoding, transport="http", is_json=is_json)
                    with heavy.place():
                        taken = await to_thread.run_sync(whole, limiter=heavy_worker)
                accepted = _accepted(taken)
        except Busy as error:
            return refused(429, error.why, error, close=True)
        except TimeoutError:
            late = f"the body did not arrive within {limits.receive_seconds} s"
            return refused(408, Rejected.SLOW, late, close=True)
        except ClientDisconnect:
            return refused(400, Rejected.CUT_OFF, "the sender went away", close=True)
        except (TooLarge, TooMuch) as error:
            return refused(413, Rejected.TOO_LARGE, error, close=True)
        except StoreError as error:
            return refused(503, Rejected.STORE, error)
        except (ValueError, RecursionError) as error:
            return refused(400, Rejected.MALFORMED, error)
        encoded = MessageToJson(accepted, indent=None) if is_json else accepted.SerializeToString()
        return Response(encoded, media_type=content_type, headers=_ANNOUNCED)

    return router


def _accepted(refused: Iterable[Refused]) -> ExportTraceServiceResponse:
    """The acknowledgement, which names the spans that could not be read."""
    accepted = ExportTraceServiceResponse()
    for each in refused:
        accepted.partial_success.rejected_spans += each.spans
        accepted.partial_success.error_message = each.reason
    return accepted


def _refused(code: int, message: str, content_type: str, *, close: bool = False) -> Response:
    """An error as OTLP/HTTP defines it: a `google.rpc.Status` in the request's encoding. `close` ends the connection: what
    may still come of the body is not read."""
    headers = {"retry-after": str(RETRY_S)} if code in AGAIN else {}
    if close:
        headers["connection"] = "close"
    if content_type == "application/x-protobuf":
        body: bytes | str = Status(message=message).SerializeToString()
    else:
        body, content_type = json.dumps({"message": message}), "application/json"
    return Response(body, status_code=code, media_type=content_type, headers=headers)
