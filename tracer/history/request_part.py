"""A part of a recording about one request, made from a store for a bug report.

The part is numbered so that only the request's lost events look lost, and its resources mark it as a part: a rule that judges
more than one request answers `unknown`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.numbering import closed_up, in_span
from kvtrail.tracer.ingest import decode

_DIGEST_BYTES = 4


def cut(about: RequestKey, spans: Sequence[Span], known: Collection[str]) -> list[Span]:
    """The spans of one request and its evidence, as a part of a recording.

    Args:
        about: the request's engine and id.
        spans: the spans of the part.
        known: the ids of the request's findings. If the part alone would show other findings, its events keep their numbers,
            so that the omitted events look lost.
    """
    events = [decode.event_of(span) for span in spans]
    read = [event for event in events if event is not None]
    numbered = closed_up(read)
    for event in numbered:
        event.sampled_only = True
    new = iter(numbered if findings_of(numbered).keys() <= set(known) else read)
    ours = [span if event is None else in_span(next(new), span) for span, event in zip(spans, events, strict=True)]
    resources: dict[int, Mapping[str, Any]] = {}
    for span in spans:
        if id(span.resource) not in resources:
            resources[id(span.resource)] = _marked(span.resource, about)
    return [replace(span, resource=resources[id(span.resource)]) if decode.is_ours(span) else span for span in ours]


def _marked(resource: Mapping[str, Any], about: RequestKey) -> Mapping[str, Any]:
    """A resource that marks the part. Its recorder gets a new id, so that the numbers of two parts, or of a part and the
    whole recording, are not treated as one stream."""
    digest = blake2b("\0".join(about).encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    recorder = f"{resource.get(semconv.RECORDER_ID.key)}~{digest}"
    return {**resource, semconv.SAMPLED_ONLY.key: True, semconv.RECORDER_ID.key: recorder}
