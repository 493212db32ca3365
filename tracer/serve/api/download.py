"""What a store holds of one request, as a part of the recording that stands by itself: for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import convert

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.request_part import cut
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.store import Reader
from kvtrail.tracer.store.request_rows import StoredRequest

MAX_SPANS = 20_000
"""Spans of other requests, beyond which only those that findings name are added."""
MAX_NAMED = 100
"""Spans that the findings of a request name and that are looked for elsewhere, and requests that these may belong to."""


def part_about(
    reader: Reader, account: StoredRequest, findings: Sequence[Mapping[str, Any]], spans: Sequence[Span]
) -> list[Span]:
    """The `spans` of a request and the evidence for its findings."""
    found = convert(findings, list[Finding])
    evidence = {(span.trace_id, span.span_id): span for span in (*spans, *_evidence(reader, account, found, spans))}
    ordered = sorted(evidence.values(), key=lambda span: span.end_ns)
    return cut((account["engine"], account["request"]), ordered, {finding.id for finding in found})


def _evidence(reader: Reader, account: StoredRequest, findings: Iterable[Finding], spans: Sequence[Span]) -> list[Span]:
    """What findings rest on besides the `spans` of their request: the spans that they name, and all of the requests that
    these are of, since an account with holes decides nothing."""
    own = {(span.span_id, span.start_ns) for span in spans}
    named = {(witness.span_id, witness.at_ns): None for finding in findings for witness in finding.witness}
    elsewhere = [each for each in named if each not in own][:MAX_NAMED]
    evidence: list[Span] = []
    seen = {(account["engine"], account["request"])}
    for span in reader.spans_named(elsewhere) if elsewhere else ():
        request = span.attributes.get(semconv.REQUEST_ID.key)
        if request is None:
            evidence.append(span)
            continue
        key = (span.resource.get(semconv.ENGINE_ID.key, ""), request)
        if key in seen:
            continue
        seen.add(key)
        room = MAX_SPANS - len(evidence)
        other = reader.request(request, engine=key[0]) if room > 0 else None
        evidence += [span] if other is None else filter(decode.is_ours, reader.spans_of(other, limit=room))
    return evidence
