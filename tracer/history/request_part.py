"""A part of a recording that is about one request: made from what a store holds of it, and judged by an audit.

The part is numbered so that only what the request lost looks lost. It holds the spans that the request's findings name, and
the requests of these. Where its spans still do not give what the tracer recorded, since a rule read more of the engine,
it carries that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_fields
from hashlib import blake2b
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.parts import PART_ENGINE, PART_RECORDED, PART_REQUEST
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.numbering import closed_up, in_span
from kvtrail.tracer.history.offline import OfflineDetector
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.rules.rule import Rule

_DIGEST_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a tracer recorded about a request: its verdict, why it is unknown if it is, how many of its events are missing,
    and its findings."""

    verdict: Verdict
    unknown: Unknown | None = None
    missing: int = 0
    findings: Sequence[Finding] = ()

    def as_text(self) -> str:
        """For an attribute."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: object) -> Recorded | None:
        """The content of such an attribute; None if it has another form."""
        try:
            return convert(json.loads(str(text)), cls)
        except (ValueError, RecursionError):
            return None

    @property
    def facts(self) -> tuple[object, ...]:
        """What is compared between two of them."""
        return self.verdict, self.unknown, self.missing, sorted(map(_facts, self.findings))


def _facts(finding: Finding) -> tuple[str, int, int, str]:
    numbers = json.dumps(finding.numbers, sort_keys=True, default=str)
    return finding.id, finding.count, finding.healed, numbers


def cut(about: RequestKey, spans: Sequence[Span], recorded: Recorded) -> list[Span]:
    """The spans of a request, by engine and id, and the evidence among them, as a part of its own.

    A judgement of the part must not find anything that is due to what was left out. So it counts as all that the engine did
    only if that shows no more than was recorded; otherwise its resources say that it is a part, and a rule that looks at more
    than a request answers `unknown`; where even that shows more, its events keep their numbers, so that the rest looks lost.
    """
    events = [_event(span) for span in spans]
    read = [event for event in events if event is not None]
    known = {finding.id for finding in recorded.findings}
    marks: dict[str, Any] = {PART_ENGINE.key: about[0], PART_REQUEST.key: about[1]}
    numbered = closed_up(read)
    if not findings_of(numbered).keys() <= known or shown(about, numbered).facts != recorded.facts:
        marks[semconv.SAMPLED_ONLY.key] = True
        for event in numbered:
            event.sampled_only = True
        if not findings_of(numbered).keys() <= known:
            numbered = read
        if shown(about, numbered).facts != recorded.facts:
            marks[PART_RECORDED.key] = recorded.as_text()
    new = iter(numbered)
    ours = [span if event is None else in_span(next(new), span) for span, event in zip(spans, events, strict=True)]
    resources: dict[int, Mapping[str, Any]] = {}
    for span in spans:
        if id(span.resource) not in resources:
            resources[id(span.resource)] = _marked(span.resource, marks, about)
    return [replace(span, resource=resources[id(span.resource)]) if decode.is_ours(span) else span for span in ours]


def _event(span: Span) -> Event | None:
    try:
        return decode.read(span)[0]
    except decode.MalformedSpan:
        return None


def _marked(resource: Mapping[str, Any], marks: Mapping[str, Any], about: RequestKey) -> Mapping[str, Any]:
    """A resource with the marks of the part. Its recorder gets an id of its own: the numbers of two parts, or of a part and
    the whole, must not be taken for those of one stream."""
    recorder = resource.get(semconv.RECORDER_ID.key)
    own = {} if recorder is None else {semconv.RECORDER_ID.key: f"{recorder}~{_digest(about)}"}
    return {**resource, **own, **marks}


def _digest(about: RequestKey) -> str:
    return blake2b("\0".join(about).encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def about(resource: Mapping[str, Any]) -> RequestKey | None:
    """The request, by engine and id, that a part with this resource is about; None if it is no part of this kind."""
    engine, request = resource.get(PART_ENGINE.key), resource.get(PART_REQUEST.key)
    return (engine, request) if isinstance(engine, str) and isinstance(request, str) else None


class Parts:
    """The parts among what an audit reads, each judged by itself: those of one request may hold events of another."""

    def __init__(self, rules: Sequence[Rule] | None, why: str | None = None) -> None:
        self._rules, self._why = rules, why
        self._heard: dict[RequestKey, tuple[OfflineDetector, Recorded | None]] = {}

    def take(self, events: list[Event], resources: Mapping[Any, Mapping[str, Any]]) -> list[Event]:
        """Enter the events that belong to parts, and return the others. `resources` has each recorder's."""
        keys = {recorder: key for recorder, resource in resources.items() if (key := about(resource)) is not None}
        if not keys:
            return events
        for key in dict.fromkeys(keys.values()):
            if own := [event for event in events if keys.get(event.recorder) == key]:
                recorder = own[0].recorder
                self._of(key, resources[recorder]).feed(own)
        return [event for event in events if event.recorder not in keys]

    def closed(self) -> Iterator[tuple[OfflineDetector, Recorded | None]]:
        """Each part's detector after the last event, and what the part carries of the tracer's own judgement. Where
        only some rules judge, that counts if it is about them."""
        chosen = None if self._rules is None else {rule.id for rule in self._rules}
        for detector, recorded in self._heard.values():
            detector.close()
            if recorded is not None and chosen is not None:
                found = [finding for finding in recorded.findings if finding.rule in chosen]
                recorded = replace_fields(recorded, findings=found) if found else None
            yield detector, recorded

    def _of(self, key: RequestKey, resource: Mapping[str, Any]) -> OfflineDetector:
        if key not in self._heard:
            detector = OfflineDetector(rules=self._rules, why=self._why, about=key)
            self._heard[key] = detector, Recorded.of_text(resource.get(PART_RECORDED.key))
        return self._heard[key][0]


def shown(about: RequestKey, events: Sequence[Event]) -> Recorded:
    """What the events of a part show of its request by themselves."""
    detector = OfflineDetector(about=about)
    detector.feed(events)
    detector.close()
    (verdict,) = detector.verdicts or (Verdict.UNKNOWN,)
    (unknown,) = detector.reasons or (None,)
    return Recorded(
        verdict=verdict, unknown=unknown, missing=detector.missing, findings=list(detector.findings.values())
    )
