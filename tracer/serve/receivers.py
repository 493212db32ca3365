"""OTLP receivers: a gRPC server, and the HTTP route for protobuf and JSON, plain or gzip.

Both acknowledge a batch only after the pipeline has stored it, and ask the sender to retry if it could not. Spans that cannot
be read are told in the acknowledgement (OTLP's partial success), and the others are stored. Each answer says that it is a
kvtrail's: recorders then send their signs of life.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvtrail import __version__
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.decode import MalformedOtlp, Refused
from kvtrail.tracer.model.semconv import RECEIVER
from kvtrail.tracer.serve.access import Tls, TokenInterceptor, Tokens
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store import StoreError

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest request accepted, after decompression: the limit of the OpenTelemetry SDK's own exporters."""
_ANNOUNCED = {RECEIVER: __version__}
BODY_S = 30.0
"""How long a body may take to arrive."""
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


class TooLarge(ValueError):
    """A body of more than `MAX_BODY_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_BODY_BYTES} bytes in one request: send smaller batches")


class PortTaken(RuntimeError):
    """A server could not listen; the text names the address and the option that changes it."""


def address(host: str, port: int) -> str:
    """An address as it stands in a URL: that of IPv6 has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve_grpc(
    pipeline: Pipeline, host: str, port: int, *, tokens: Tokens | None = None, tls: Tls | None = None
) -> grpc.Server:
    """Start the gRPC server, which runs on its own threads until it is stopped.

    Raises:
        PortTaken: the address is in use or does not belong to this machine.
    """

    def export(payload: bytes, context: grpc.ServicerContext) -> bytes:
        refused = None
        context.send_initial_metadata(tuple(_ANNOUNCED.items()))
        try:
            refused = _ingested(pipeline, payload, "grpc")
        except MalformedOtlp as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StoreError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return _accepted(refused).SerializeToString()

    server = grpc.server(
        ThreadPoolExecutor(max_workers=4, thread_name_prefix="otlp-grpc"),
        # Without so_reuseport a second tracer on the same port would silently receive half of the spans.
        options=[("grpc.max_receive_message_length", MAX_BODY_BYTES), ("grpc.so_reuseport", 0)],
        interceptors=() if tokens is None else (TokenInterceptor(tokens),),
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


def http_routes(pipeline: Pipeline) -> APIRouter:
    """The route `POST /v1/traces`."""
    router = APIRouter(tags=["OTLP"])

    @router.post("/v1/traces", summary="OTLP/HTTP trace export (protobuf or JSON, plain or gzip)")
    async def traces(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in ("application/x-protobuf", "application/json"):
            wanted = "send application/x-protobuf or application/json"
            return _refused(415, f"content type {content_type!r}: {wanted}", content_type)
        is_json = content_type == "application/json"
        encoding = request.headers.get("content-encoding", "").strip().lower()
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(request)
            accepted = await run_in_threadpool(_received, pipeline, body, encoding, is_json=is_json)
        except TimeoutError:
            return _refused(408, f"the body did not arrive within {BODY_S:.0f} s", content_type, close=True)
        except TooLarge as error:
            return _refused(413, str(error), content_type, close=True)
        except (ValueError, RecursionError, OSError, zlib.error, EOFError) as error:
            return _refused(400, str(error), content_type)
        except StoreError as error:
            return _refused(503, str(error), content_type)
        said = MessageToJson(accepted, indent=None) if is_json else accepted.SerializeToString()
        return Response(said, media_type=content_type, headers=_ANNOUNCED)

    return router


async def _body(request: Request) -> bytes:
    """The body as it comes. Raises TooLarge as soon as it is."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge
    return bytes(body)


def _received(pipeline: Pipeline, body: bytes, encoding: str, *, is_json: bool) -> ExportTraceServiceResponse:
    """Process a body; on a thread, since a large one takes long to unpack and to parse."""
    payload, no_otlp = _decompressed(body, encoding), None
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


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        plain = body
    elif encoding == "gzip":
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            plain = file.read(MAX_BODY_BYTES + 1)
    else:
        raise ValueError(f"content encoding {encoding!r}: send gzip, or no encoding")
    if len(plain) > MAX_BODY_BYTES:
        raise TooLarge
    return plain


def _refused(code: int, message: str, content_type: str, *, close: bool = False) -> Response:
    """An error as OTLP/HTTP defines it: a `google.rpc.Status` in the request's encoding. `close` ends the connection: what
    may still come of the body is not read."""
    headers = {"connection": "close"} if close else None
    if content_type == "application/x-protobuf":
        body: bytes | str = Status(message=message).SerializeToString()
    else:
        body, content_type = json.dumps({"message": message}), "application/json"
    return Response(body, status_code=code, media_type=content_type, headers=headers)
