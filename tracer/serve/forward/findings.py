"""Findings as OpenTelemetry: events of the request's root, and spans that link to their witnesses.

Backends differ in what they show, so a finding travels twice. All of them show a span; most show the events of a span beside
it, and the links lead from the finding to each call that proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from kvtrail import __version__
from kvtrail.tracer.events import semconv
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.serve.forward.pieces import Origin, Piece

TRACE_BYTES, SPAN_BYTES = 16, 8
_SCOPE = ScopeSpans(scope=InstrumentationScope(name=semconv.FINDINGS_SCOPE, version=__version__)).SerializeToString()
_SERVICE = "service.name"
IsKnown = Callable[[Finding], bool]
"""Whether a finding is known now."""


def with_findings(root: bytes, findings: Iterable[Finding], is_known: IsKnown) -> bytes:
    """A root with an event for each finding. What is appended to an encoded message is added to its fields, so the root
    itself stays as it came."""
    events = [
        Span.Event(
            time_unix_nano=each.last_ns,
            name=semconv.FINDING_SPAN,
            attributes=_attributes(_finding_attributes(each, known=is_known(each))),
        )
        for each in findings
    ]
    return root + Span(events=events).SerializeToString()


def as_piece(finding: Finding, *, known: bool, trace_id: str, root_id: bytes, origin: Origin | None) -> Piece | None:
    """The span of a finding, in the trace of its request and below its root, or without a parent if that is not known. It has
    the resource of the request's spans. None if there is no trace that it could be in."""
    trace = _id(trace_id, TRACE_BYTES)
    if trace is None:
        return None
    times = [witness.at_ns for witness in finding.witness] or [finding.first_ns]
    linked = [(each, _id(each.trace_id, TRACE_BYTES), _id(each.span_id, SPAN_BYTES)) for each in finding.witness]
    about = {
        semconv.ENGINE_ID.key: finding.engine,
        semconv.REQUEST_ID.key: finding.request,
        semconv.EXTERNAL_ID.key: finding.external,
        semconv.CONNECTOR.key: finding.connector,
    }
    span = Span(
        trace_id=trace,
        span_id=bytes.fromhex(finding.id),  # the same when it is found again after a restart
        parent_span_id=root_id,
        name=f"{semconv.FINDING_SPAN} {finding.rule}",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=min(times),
        end_time_unix_nano=max(times),
        attributes=_attributes(
            {key: value for key, value in about.items() if value} | _finding_attributes(finding, known=known)
        ),
        links=[
            Span.Link(trace_id=of, span_id=id_, attributes=_attributes({semconv.FINDING_WITNESS.key: each.label}))
            for each, of, id_ in linked
            if of is not None and id_ is not None
        ],
    )
    if finding.healed < finding.count:
        span.status.code, span.status.message = Status.STATUS_CODE_ERROR, finding.title
    return Piece(_of_findings(origin, finding.engine), span.SerializeToString())


def _finding_attributes(finding: Finding, *, known: bool) -> dict[str, str | int]:
    return {
        semconv.FINDING_RULE.key: finding.rule,
        semconv.FINDING_TITLE.key: finding.title,
        semconv.FINDING_SEVERITY.key: finding.severity.value,
        semconv.FINDING_EXPLANATION.key: finding.explanation,
        semconv.FINDING_HINT.key: finding.hint,
        semconv.FINDING_COUNT.key: finding.count,
        semconv.FINDING_HEALED.key: finding.healed,
        semconv.FINDING_KNOWN.key: known,
        semconv.EPOCH.key: finding.epoch,
    }


def _attributes(values: Mapping[str, str | int]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: str | int) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    return AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)


def _of_findings(origin: Origin | None, engine: str) -> Origin:
    """The resource of the request's spans, with the scope of findings."""
    if origin is not None:
        resource = origin.resource
    else:
        named = _attributes({_SERVICE: semconv.SCOPE, semconv.ENGINE_ID.key: engine})
        resource = ResourceSpans(resource=Resource(attributes=named)).SerializeToString()
    return Origin(resource, _SCOPE, semconv.FINDINGS_SCOPE)


def _id(text: str, length: int) -> bytes | None:
    """An id in bytes; None if it is no legal one."""
    try:
        id_ = bytes.fromhex(text)
    except ValueError:
        return None
    return id_ if len(id_) == length and any(id_) else None
