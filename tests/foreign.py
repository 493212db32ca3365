"""An OTLP receiver that is no kvtrail: of OpenTelemetry's own service classes, it only keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kvtrail.tracer.events import semconv
from kvtrail.tracer.ingest import protobuf


class ForeignReceiver(TraceServiceServicer):
    """Any other OpenTelemetry backend.

    Attributes:
        requests: as they came.
    """

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.port = 0

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        self.requests.append(request)
        return ExportTraceServiceResponse()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self, name: str = "") -> list[Span]:
        """The spans of this name, or all of them, in the order in which they came."""
        lists = (
            scope.spans for each in self.requests for resource in each.resource_spans for scope in resource.scope_spans
        )
        return [span for spans in lists for span in spans if name in ("", span.name)]

    def by_request(self, name: str) -> dict[str, Span]:
        """The span of this name of each request, by the request's id; no request has two."""
        spans = {attributes(span)[semconv.REQUEST_ID.key]: span for span in self.spans(name)}
        assert len(spans) == len(self.spans(name))
        return spans


def attributes(span: Span) -> dict[str, Any]:
    return protobuf.attributes(span.attributes)


@contextmanager
def receiving() -> Iterator[ForeignReceiver]:
    """A receiver on a port of this machine."""
    receiver, server = ForeignReceiver(), grpc.server(ThreadPoolExecutor(max_workers=4))
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None)
