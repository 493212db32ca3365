"""OTLP receivers: a gRPC server, and the HTTP route for protobuf and JSON, plain or gzip.

Both acknowledge a batch only after the pipeline has stored it, and ask the sender to retry if it could not. Spans that cannot
be read are told in the acknowledgement (OTLP's partial success), and the others are stored. Each answer says that it is a
kvtrail's: recorders then send their signs of life.
"""

from __future__ import annotations

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
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store import StoreError

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest request accepted, after decompression: the limit of the OpenTelemetry SDK's own exporters."""
_ANNOUNCED = {RECEIVER: __version__}
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


class PortTaken(RuntimeError):
    """A server could not listen; the text names the address and the option that changes it."""


def serve_grpc(pipeline: Pipeline, host: str, port: int) -> grpc.Server:
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
    )
    # Without a deserializer the method gets the bytes.
    methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise PortTaken(f"cannot listen on {host}:{port} for OTLP over gRPC; is it in use? Choose another: --grpc-port")
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
        try:
            body = _decompressed(await request.body(), request.headers.get("content-encoding", "").strip().lower())
            payload, no_otlp = otlp_json.salvaged(json.loads(body)) if is_json else (body, None)
        except (ValueError, RecursionError, OSError, zlib.error, EOFError) as error:
            return _refused(400, str(error), content_type)
        try:
            refused = await run_in_threadpool(_ingested, pipeline, payload, "http")
        except MalformedOtlp as error:
            return _refused(400, str(error), content_type)
        except StoreError as error:
            return _refused(503, str(error), content_type)
        accepted = _accepted(no_otlp, refused)
        said = MessageToJson(accepted, indent=None) if is_json else accepted.SerializeToString()
        return Response(said, media_type=content_type, headers=_ANNOUNCED)

    return router


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
        raise ValueError(f"more than {MAX_BODY_BYTES} bytes in one request: send smaller batches")
    return plain


def _refused(code: int, message: str, content_type: str) -> Response:
    """An error as OTLP/HTTP defines it: a `google.rpc.Status` in the request's encoding."""
    if content_type == "application/x-protobuf":
        return Response(Status(message=message).SerializeToString(), status_code=code, media_type=content_type)
    return Response(json.dumps({"message": message}), status_code=code, media_type="application/json")
