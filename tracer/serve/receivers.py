"""OTLP receivers: a gRPC server, and the HTTP route for protobuf and JSON, plain or gzip.

Both acknowledge a batch only after the pipeline has stored it, and ask the sender to retry if it could not, or if too many
wait already. Spans that cannot be read are told in the acknowledgement (OTLP's partial success), and the others are stored.
Each answer says that it is a kvtrail's: recorders then send their signs of life.

A fleet that is faster than the pipeline is held back by waiting: each of its exporters sends one batch at a time.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

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
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.decode import MalformedOtlp, Refused
from kvtrail.tracer.model.semconv import RECEIVER
from kvtrail.tracer.serve.access import Tls, TokenInterceptor, Tokens
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics import Metrics, Rejected
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store import StoreError

_ANNOUNCED = {RECEIVER: __version__}
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
GRPC_WORKERS = 4
"""Threads that take messages in. Those who wait for one keep their message for themselves."""
HTTP_WORKERS = 2
"""Bodies that are unpacked and parsed at a time; the pipeline takes one at a time."""
AGAIN = (429, 503)
"""Answers of HTTP after which a sender tries again."""
IDLE_MS = 600_000
"""A gRPC connection that is not used for so long is closed; recorders send a sign of life every few seconds."""


class TooLarge(ValueError):
    """A request of more bytes than are taken."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes in one request: send smaller batches")


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


def serve_grpc(
    pipeline: Pipeline,
    metrics: Metrics,
    host: str,
    port: int,
    *,
    limits: Limits,
    tokens: Tokens | None = None,
    tls: Tls | None = None,
) -> grpc.Server:
    """Start the gRPC server, which runs on its own threads until it is stopped.

    Raises:
        PortTaken: the address is in use or does not belong to this machine.
    """
    rejected = partial(metrics.count_rejected, "grpc")

    def export(payload: bytes, context: grpc.ServicerContext) -> bytes:
        refused = None
        context.send_initial_metadata(tuple(_ANNOUNCED.items()))
        try:
            refused = _ingested(pipeline, payload, "grpc")
        except MalformedOtlp as error:
            rejected(Rejected.MALFORMED)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StoreError as error:
            rejected(Rejected.STORE)
            _ask_again(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return _accepted(refused).SerializeToString()

    def refuse(payload: bytes, context: grpc.ServicerContext) -> None:
        rejected(Rejected.BUSY)
        _ask_again(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(Busy(Rejected.BUSY)))

    workers = _Workers(GRPC_WORKERS)
    metrics.watch_waiting("grpc", lambda: workers.waiting)
    interceptors: list[grpc.ServerInterceptor] = [] if tokens is None else [TokenInterceptor(tokens)]
    server = grpc.server(
        workers,
        # Without so_reuseport a second tracer on the same port would silently receive half of the spans.
        options=[
            ("grpc.max_receive_message_length", limits.request_bytes),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.so_reuseport", 0),
        ],
        interceptors=[*interceptors, _NotTooMany(workers, limits.max_waiting, refuse)],
    )
    # Without a deserializer the method gets the bytes.
    methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    try:
        where = address(host, port)
        bound = server.add_insecure_port(where) if tls is None else server.add_secure_port(where, tls.for_grpc())
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise PortTaken(f"cannot listen on {where} for OTLP over gRPC; is it in use? Choose another: --grpc-port")
    server.start()
    return server


class _Workers(ThreadPoolExecutor):
    """Threads of the gRPC server, and how many calls wait for one or have one."""

    def __init__(self, count: int) -> None:
        super().__init__(count, thread_name_prefix="otlp-grpc")
        self.waiting = 0
        self._counting = threading.Lock()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._counting:
            self.waiting += 1
        future = super().submit(call, *args, **kwargs)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        with self._counting:
            self.waiting -= 1


class _NotTooMany(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls while too many wait."""

    def __init__(self, workers: _Workers, most: int, refuse: Callable[..., None]) -> None:
        self._workers, self._most = workers, most
        # A thread of its own: a refusal must not wait behind those for whom there was still room.
        refuse.experimental_thread_pool = ThreadPoolExecutor(1, thread_name_prefix="refuse")  # type: ignore[attr-defined]
        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return self._refusal if self._workers.waiting >= self._most else continuation(handler_call_details)


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


class _Bodies:
    """The bodies that are being received over HTTP, or wait to be stored: how many, and their bytes. Lives on the event
    loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0
        self._bytes = 0

    @contextmanager
    def place(self) -> Iterator[bytearray]:
        """A place for a body. Raises Busy if there is none."""
        if self.count >= self._limits.max_waiting:
            raise Busy(Rejected.BUSY)
        body = bytearray()
        self.count += 1
        try:
            yield body
        finally:
            self.count -= 1
            self._bytes -= len(body)

    async def read(self, request: Request, body: bytearray) -> None:
        """Read a body into its place as it comes. Raises TooLarge or Busy as soon as it is too much."""
        async for part in request.stream():
            body += part
            self._bytes += len(part)
            if len(body) > self._limits.request_bytes:
                raise TooLarge(self._limits.request_bytes)
            if self._bytes > self._limits.waiting_bytes:
                raise Busy(Rejected.MEMORY)


def http_routes(pipeline: Pipeline, metrics: Metrics, limits: Limits) -> APIRouter:
    """The route `POST /v1/traces`."""
    router = APIRouter(tags=["OTLP"])
    bodies, workers = _Bodies(limits), CapacityLimiter(HTTP_WORKERS)
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
                async with asyncio.timeout(limits.receive_seconds):
                    await bodies.read(request, body)
                work = partial(_received, pipeline, body, encoding, is_json=is_json, most=limits.request_bytes)
                accepted = await to_thread.run_sync(work, limiter=workers)
        except Busy as error:
            return refused(429, error.why, error, close=True)
        except TimeoutError:
            late = f"the body did not arrive within {limits.receive_seconds} s"
            return refused(408, Rejected.SLOW, late, close=True)
        except ClientDisconnect:
            return refused(400, Rejected.CUT_OFF, "the sender went away", close=True)
        except TooLarge as error:
            return refused(413, Rejected.TOO_LARGE, error, close=True)
        except StoreError as error:
            return refused(503, Rejected.STORE, error)
        except (ValueError, RecursionError, OSError, zlib.error, EOFError) as error:
            return refused(400, Rejected.MALFORMED, error)
        said = MessageToJson(accepted, indent=None) if is_json else accepted.SerializeToString()
        return Response(said, media_type=content_type, headers=_ANNOUNCED)

    return router


def _received(
    pipeline: Pipeline, body: bytearray, encoding: str, *, is_json: bool, most: int
) -> ExportTraceServiceResponse:
    """Process a body; on a thread, since a large one takes long to unpack and to parse."""
    payload, no_otlp = _decompressed(body, encoding, most), None
    if is_json:
        payload, no_otlp = otlp_json.salvaged(json.loads(payload))
    return _accepted(no_otlp, _ingested(pipeline, payload, "http"))


def _ingested(pipeline: Pipeline, payload: bytes, transport: str) -> Refused | None:
    """`Pipeline.ingest`. Of an error that nobody expects, the sender is told to try again: nothing was acknowledged."""
    try:
        return pipeline.ingest(payload, transport=transport)
    except (MalformedOtlp, StoreError):
        raise
    except Exception as error:
        pipeline.errors.count(Where.INGEST, error, "a batch is not stored")
        raise StoreError(f"an error in kvtrail itself: {type(error).__name__}") from error


def _accepted(*refused: Refused | None) -> ExportTraceServiceResponse:
    """The acknowledgement, which names the spans that could not be read."""
    accepted = ExportTraceServiceResponse()
    for each in refused:
        if each is not None:
            accepted.partial_success.rejected_spans += each.spans
            accepted.partial_success.error_message = each.reason
    return accepted


def _decompressed(body: bytearray, encoding: str, most: int) -> bytes:
    if encoding in ("", "identity"):
        plain = bytes(body)
    elif encoding == "gzip":
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            plain = file.read(most + 1)
    else:
        raise ValueError(f"content encoding {encoding!r}: send gzip, or no encoding")
    if len(plain) > most:
        raise TooLarge(most)
    return plain


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
