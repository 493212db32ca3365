"""Decodes spans to events, for both encodings of OTLP.

`events.events` defines the names and the checks of an event's fields. A decoder walks over one encoding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec import ValidationError, convert
from msgspec.structs import fields, replace

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, KEYS, LONGEST_NS, Event, Unfamiliar
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import steps

_KNOWN = {name: frozenset(field.encode_name for field in fields(cls)) for name, cls in CLASSES.items()}
_COMMON = frozenset(field.encode_name for field in fields(Unfamiliar))
_RESOURCE = frozenset(a.key for a in semconv.RESOURCE)
_NAMESPACE = f"{semconv.SCOPE}."
_OUTCOME = KEYS["outcome"]
_ENGINE, _RECORDER = semconv.ENGINE_ID.key, semconv.RECORDER_ID.key
_FOR_OTHERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    (Kind.REQUEST, Kind.CUT_OFF), tuple(each.key for each in semconv.ROOT_SPAN_ATTRIBUTES)
)
"""Attributes that recorders write for other backends, by kind. They are not fields of an event."""
_OPTIONAL = (
    (semconv.BLOCK_SIZE.key, int),
    (semconv.CAPABILITIES.key, str),
    (semconv.PATIENCE.key, str),
    (semconv.ASYNC_SCHEDULING.key, bool),
    (semconv.SAMPLED_ONLY.key, bool),
    (semconv.LAUNCH.key, str),
    (semconv.LACKS.key, str),
    (semconv.CACHE_IDENTITY.key, str),
    (semconv.GROUPS.key, str),
)
"""Attributes of a resource that become fields of its events if they have this type."""

Ids = tuple[str, str, int, int, str | None]
"""A span's trace id, span id, start and end in Unix nanoseconds, and error."""


Data = TypeVar("Data")


class MalformedOtlp(ValueError):
    """Bytes or JSON that are not an `ExportTraceServiceRequest`; the text says why."""


class MalformedSpan(ValueError):
    """A span in kvtrail's scope without a required attribute, or with a value that no recorder writes. The text names the
    span and the fault.

    Attributes:
        about: the span's name and the attribute, or the field, that is wrong: the same for all spans with this fault.
        trace_id: the span's trace.
    """

    def __init__(self, text: str, *, about: tuple[str, str], trace_id: str = "") -> None:
        super().__init__(text)
        self.about = about
        self.trace_id = trace_id


@dataclass(frozen=True, slots=True)
class Refused:
    """The number of spans of a request that could not be read at all, and the reason for the first of them."""

    spans: int
    reason: str


def is_ours(span: Span) -> bool:
    """Whether a kvtrail recorder, of this version or a newer one, wrote the span."""
    return span.scope == semconv.SCOPE


def from_span(span: Span) -> Event | None:
    """The event of a span, or a placeholder for an event that only another version of kvtrail knows. None for a foreign span,
    and for one without readable sequence numbers.

    Raises:
        MalformedSpan: the span has our scope and a known name, but not the attributes that its kind needs; or it is a step
            that could not be split into rows.
    """
    if span.scope != semconv.SCOPE or span.name == semconv.ENGINE_SPAN:
        return None
    if span.name == semconv.STEP_SPAN:
        _rows(span.span_id, span.attributes)
    if span.name not in CLASSES:
        return _stand_in(_ids(span), span.attributes | common(span.resource))
    return event(span.name, _ids(span), span.attributes.copy(), common(span.resource))[0]


def event_of(span: Span) -> Event | None:
    """The result of `from_span`; None also for a malformed span."""
    try:
        return from_span(span)
    except MalformedSpan:
        return None


def _stand_in(ids: Ids, values: Mapping[str, Any]) -> Unfamiliar | None:
    """The placeholder for a span that only another version understands; None if even its numbers are not understood."""
    own = {key: value for key, value in values.items() if key in _COMMON}
    _enter(ids, own)
    try:
        return convert(own, Unfamiliar)
    except ValidationError:
        return None


def _enter(ids: Ids, values: dict[str, Any]) -> None:
    """Set the fields that every event takes from its span."""
    values["trace_id"], values["span_id"], start_ns, values["end_ns"], values["error"] = ids
    values["start_ns"] = start_ns or ids[3]  # an event without a start has no duration


def split_step_spans(span: Span) -> list[Span]:
    """The span itself; for a step, one `kv.schedule` per row instead, unless its columns do not fit together."""
    if span.name != semconv.STEP_SPAN or span.scope != semconv.SCOPE:
        return [span]
    try:
        rows = _rows(span.span_id, span.attributes)
    except MalformedSpan:
        return [span]
    return [replace(span, name=Kind.SCHEDULE.value, span_id=id_, attributes=own) for id_, own in rows]


def _rows(span_id: str, attributes: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a step, in the form of `steps.apart`. Raises MalformedSpan."""
    try:
        return steps.apart(span_id, attributes)
    except steps.Unfit as wrong:
        text = f"span {span_id} ({semconv.STEP_SPAN}): {wrong}"
        raise MalformedSpan(text, about=(semconv.STEP_SPAN, wrong.key)) from wrong


def _ids(span: Span) -> Ids:
    return span.trace_id, span.span_id, span.start_ns, span.end_ns, span.error


def event(name: str, ids: Ids, values: dict[str, Any], common: Mapping[str, Any]) -> tuple[Event, Sequence[str]]:
    """The event of a known kind, and the names of the attributes that a newer kvtrail may know. If it is malformed and has
    names that a newer kvtrail may use in place of ours, a placeholder instead. `values` are the span's attributes, and are
    changed; `common` is the result of the function of that name.

    Raises:
        MalformedSpan: as for `from_span`.
    """
    kind, of_event = name, ids
    if ids[4] is not None:
        if name == Kind.REQUEST and values.get(_OUTCOME) == semconv.CUT_OFF:
            kind, of_event = Kind.CUT_OFF, (*ids[:4], None)  # its status is not an exception
        elif ids[4] == semconv.FAILED_REASON:
            of_event = (*ids[:4], None)  # neither is this
    if kind in _FOR_OTHERS:
        for key in _FOR_OTHERS[kind]:
            values.pop(key, None)
    values |= common
    _enter(of_event, values)
    try:
        decoded: Event = convert(values, CLASSES[kind])
    except ValidationError:
        try:
            return _lasting(_without_unknown(kind, ids, values)), _unknown(values, _KNOWN[kind])
        except MalformedSpan:
            unknown = _unknown(values, _KNOWN[name])
            if unknown and (unfamiliar := _stand_in(ids, values)) is not None:
                return unfamiliar, unknown
            raise
    return _lasting(decoded), ()


def _lasting(event: Event) -> Event:
    """The event, if its duration is plausible. Raises MalformedSpan otherwise."""
    if event.end_ns - event.start_ns > LONGEST_NS:
        days = (event.end_ns - event.start_ns) // (86_400 * 10**9)
        text = f"span {event.span_id} ({event.kind}): it lasted {days:,} days"
        raise MalformedSpan(text, about=(event.kind, "end_ns"))
    return event


def _without_unknown(name: str, ids: Ids, values: Mapping[str, Any]) -> Event:
    """The event without the attributes that its kind does not have."""
    known = _KNOWN[name]
    try:
        return convert({key: value for key, value in values.items() if key in known}, CLASSES[name])
    except ValidationError as wrong:
        expected, _, path = str(wrong).partition(" - at `$.")
        key = path.rstrip("`").partition("[")[0]
        if key in values:
            wanted = expected.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
            expected = f"{key} is {steps.SHORT.repr(values[key])}, but must be {wanted}"
        raise MalformedSpan(f"span {ids[1]} ({name}): {expected}", about=(name, key or expected)) from wrong


def common(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all events take from their resource."""
    # None is invalid as an id, so an attribute of the span cannot replace an id that the resource lacks.
    values = {_ENGINE: resource.get(_ENGINE), _RECORDER: resource.get(_RECORDER)}
    for key, type_ in _OPTIONAL:
        if type(value := resource.get(key)) is type_:
            values[key] = value
    return values


def misfits(resource: Mapping[str, Any]) -> list[str]:
    """A sentence about each attribute of a resource that its events omit because it has the wrong type."""
    return [
        f"{key} is {steps.SHORT.repr(resource[key])}, but must be {type_.__name__}; it is left out"
        for key, type_ in _OPTIONAL
        if key in resource and type(resource[key]) is not type_
    ]


def unknown_in_resource(resource: Mapping[str, Any]) -> list[str]:
    """The names of a resource's attributes that are kvtrail's but not known to this version."""
    return _unknown(resource, _RESOURCE)


def _unknown(attributes: Mapping[str, Any], known: Set[str]) -> list[str]:
    return [key for key in attributes if key.startswith(_NAMESPACE) and key not in known]


@dataclass(slots=True)
class Decoded:
    """The contents of one request.

    Attributes:
        spans: the number of spans; a step counts as one.
        events: the events, in the order of the request.
        foreign: spans that no kvtrail recorder wrote.
        malformed: an error for each kvtrail span without a required attribute.
        unknown_spans: the number of kvtrail spans by each name that this version does not know.
        stand_ins: the number of events that are placeholders for such spans.
        unknown_attributes: the number of kvtrail attributes by each name that this version does not know.
        resources: the resources of our spans, without consecutive duplicates.
    """

    spans: int = 0
    events: list[Event] = field(default_factory=list)
    foreign: list[Span] = field(default_factory=list)
    malformed: list[MalformedSpan] = field(default_factory=list)
    unknown_spans: Counter[str] = field(default_factory=Counter)
    unknown_attributes: Counter[str] = field(default_factory=Counter)
    stand_ins: int = 0
    resources: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def at_ns(self) -> int:
        """The time of its first event; 0 if it has none."""
        return self.events[0].end_ns if self.events else 0

    def add(self, span: Span) -> None:
        """Add a span to the list of its category."""
        if span.scope != semconv.SCOPE:
            self.foreign.append(span)
        else:
            self.add_ours(span.name, _ids(span), span.attributes.copy(), common(span.resource))

    def add_ours(self, name: str, ids: Ids, attributes: dict[str, Any], common: Mapping[str, Any]) -> None:
        """Add a kvtrail span; `attributes` are changed."""
        try:
            if name in CLASSES:
                decoded, unknown = event(name, ids, attributes, common)
                self.events.append(decoded)
                if unknown:
                    self.unknown_attributes.update(unknown)
            elif name == semconv.STEP_SPAN:
                for id_, own in _rows(ids[1], attributes):
                    self.add_ours(Kind.SCHEDULE, (ids[0], id_, *ids[2:]), own, common)
            elif name != semconv.ENGINE_SPAN:
                self._add_unfamiliar(name, _stand_in(ids, {**attributes, **common}))
        except MalformedSpan as malformed:
            malformed.trace_id = ids[0]
            # The causes form a reference cycle of 30 kB. It would keep the request and the call that brought it alive
            # until the next garbage collection.
            malformed.__cause__ = malformed.__context__ = None
            self.malformed.append(malformed.with_traceback(None))

    def _add_unfamiliar(self, name: str, stand_in: Unfamiliar | None) -> None:
        if stand_in is not None:
            self.events.append(stand_in)
            self.stand_ins += 1
        self.unknown_spans[name] += 1


class Decoder(ABC, Generic[Data]):
    """Decodes requests. It caches parsed attributes: reuse one for as many requests as possible; it is not thread-safe.

    `Data` is an encoded request. A span in it has any type with the attribute `name`.
    """

    def spans(self, data: Data) -> list[Span]:
        """The spans of a request, in its order; steps are split into rows.

        Raises:
            ValueError: the data is not an `ExportTraceServiceRequest`; MalformedOtlp is one.
        """
        return [
            each
            for resource, scope, spans in self._lists(data)
            for span in spans
            for each in split_step_spans(self._span(span, resource, scope))
        ]

    def decoded(self, data: Data) -> Decoded:
        """The events of a request, without the spans that carry them.

        Raises:
            ValueError: as for `spans`.
        """
        decoded = Decoded()
        for resource, scope, spans in self._lists(data):
            self._sort(decoded, resource, scope, spans)
        return decoded

    def parts(self, data: Data) -> list[tuple[Mapping[str, Any], Decoded]]:
        """The result of `decoded` for each list of spans in the request, with its resource's attributes.

        Raises:
            ValueError: as for `spans`.
        """
        parts: list[tuple[Mapping[str, Any], Decoded]] = []
        for resource, scope, spans in self._lists(data):
            parts.append((resource, decoded := Decoded()))
            self._sort(decoded, resource, scope, spans)
        return parts

    def one_by_one(self, data: Data) -> tuple[list[tuple[Mapping[str, Any], Decoded]], list[Exception]]:
        """The result of `parts` with a part for each span, and the errors of the spans at which kvtrail fails."""
        parts: list[tuple[Mapping[str, Any], Decoded]] = []
        errors: list[Exception] = []
        for resource, scope, spans in self._lists(data):
            for span in spans:
                try:
                    self._sort(alone := Decoded(), resource, scope, [span])
                    parts.append((resource, alone))
                except Exception as error:
                    errors.append(error)
        return parts, errors

    def _sort(self, decoded: Decoded, resource: Mapping[str, Any], scope: str, spans: Sequence[Any]) -> None:
        """Add a list of spans."""
        decoded.spans += len(spans)
        if scope != semconv.SCOPE:
            decoded.foreign += [self._span(span, resource, scope) for span in spans]
            return
        decoded.resources.append(resource)
        of_all, unknown = common(resource), _unknown(resource, _RESOURCE)
        before = len(decoded.events) - decoded.stand_ins
        for span in spans:
            decoded.add_ours(span.name, self._ids(span), self._attributes(span), of_all)
        decoded.unknown_attributes.update(unknown * (len(decoded.events) - decoded.stand_ins - before))

    @abstractmethod
    def _lists(self, data: Data) -> Iterator[tuple[dict[str, Any], str, Sequence[Any]]]:
        """The lists of spans in a request, each with its resource's attributes and its scope's name."""

    @abstractmethod
    def _ids(self, span: Any) -> Ids: ...

    @abstractmethod
    def _attributes(self, span: Any) -> dict[str, Any]: ...

    @abstractmethod
    def _rest(self, span: Any) -> tuple[str, list[dict[str, Any]]]:
        """The fields that only a `Span` has: its parent's id, and its span events."""

    def _span(self, span: Any, resource: Mapping[str, Any], scope: str) -> Span:
        trace_id, span_id, start_ns, end_ns, error = self._ids(span)
        parent_id, events = self._rest(span)
        return Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=span.name,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=self._attributes(span),
            resource=resource,
            scope=scope,
            error=error,
            events=events,
        )
