"""The status of a span, which Jaeger and Tempo show: what has failed is an error there, and no exception to kvtrail."""

from __future__ import annotations

import pytest
from history import history
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from wire import encoded

from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.ingest.decode import from_span

BEGUN = "L 600 c0 h0 -> 512 async\nA 512 [1-19]\n"


@pytest.mark.parametrize(
    ("line", "has_failed"),
    [
        ("end error", True), ("end aborted", False), ("end", False),
        ("R failed", True), ("R", False),
        ("error [1 2]", True),
        ("xfer read failed !NIXL_ERR_REMOTE_DISCONNECT", True), ("xfer read done", False), ("xfer write failed !E", True),
        ("plan load 0+64 [1 2] #7\ndone #7 failed", True), ("plan load 0+64 [1 2] #7\ndone #7", False),
    ],
)  # fmt: skip
def test_what_has_failed_is_an_error_to_others_and_no_exception_to_kvtrail(line: str, has_failed: bool) -> None:
    events = history(BEGUN + line)
    payload = encoded(events)
    request = ExportTraceServiceRequest.FromString(payload)
    spans = [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
    (last,) = [span for span in spans if span.name == events[-1].kind]
    assert (last.status.code == Status.STATUS_CODE_ERROR) is has_failed
    assert not last.events
    assert [event.error for event in map(from_span, protobuf.spans(payload)) if event is not None] == [None] * len(
        events
    )
