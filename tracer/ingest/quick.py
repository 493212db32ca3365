"""Events straight from the text of a trace file's line.

A line of a recorded history repeats itself: the resource, the attributes of a recorder, the ids of a request, most numbers.
So it is cut at the places where OTLP's JSON has its spans and attributes, and what was read before is looked up. A quotation
mark within a JSON text is always escaped, so the places cannot be mistaken. What is left of the line without its spans is
read as JSON, and each span must be of one exact form, to its last character: so nothing is taken for an event that the
slower ways would not take for the same one. A span of another form (foreign, failed, a newer kvtrail's) is read by the slower
way alone; a line of another form is `Odd`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import fields

from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.ingest.otlp_json import Odd
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import CLASSES, Event
from kvtrail.tracer.model.spans import LATEST_NS, Span

_MOST_REMEMBERED = 8192
_LONGEST_COUNT = len(str(decode.MOST)) - 1
"""Digits of a number that is surely none too large."""
_LONGEST_REMEMBERED = 200
"""Characters of an attribute. A longer one is a block table or a list of keys, which seldom comes again."""
_SPANS = ',"spans":['
_SPAN = '{"traceId":"'
_NEXT = '},{"key":"'
_VALUE = '","value":{'
_INT, _STRING, _LIST, _END = '"intValue":"', '"stringValue":"', '"arrayValue":{"values":[{', '"}'
_INTS, _STRINGS, _LIST_END = _LIST + _INT, _LIST + _STRING, '"}]}}'
_NEXT_INT, _NEXT_STRING = '"},{' + _INT, '"},{' + _STRING
_QUOTE, _BACKSLASH = '"', "\\"
_SEQUENCE = _NEXT + semconv.SEQUENCE.key + _VALUE + _INT
_PLAIN_END = "}]},"
_STATUS_END = '}],"status":{}},'
_IDS = r'([0-9a-f]{32})","spanId":"([0-9a-f]{16})",'
_TIMES = r'"startTimeUnixNano":"([0-9]{1,19})","endTimeUnixNano":"([0-9]{1,19})",'
_FIRST_KEY = r'"attributes":\[\{"key":"'
_HEAD = re.compile(
    _IDS + r'(?:"traceState":"",)?(?:"parentSpanId":"(?:[0-9a-f]{16})?",)?(?:"flags":[0-9]{1,10},)?"name":"([^"\\]*)",'
    r'(?:"kind":[0-9],)?' + _TIMES + r'(?:"droppedAttributesCount":0,)?' + _FIRST_KEY,
    re.ASCII,
)
_OURS = re.compile(
    _IDS + r'"parentSpanId":"[0-9a-f]{16}","name":"([a-z._]+)","kind":1,' + _TIMES + _FIRST_KEY, re.ASCII
)
"""What `_HEAD` finds too, in the form in which a sidecar writes most of its spans: found a quarter faster."""
_COMMON = frozenset(each.name for each in fields(Event))
_NEW = ("sequence", "start_ns", "end_ns")
"""What every span says anew."""
_NEEDED = {
    name: tuple(each.name for each in fields(cls) if each.required and each.name not in _COMMON)
    for name, cls in CLASSES.items()
}
"""What an event of a kind must say."""
_copied: Callable[[Event], Event] = Event.__copy__  # type: ignore[attr-defined]  # msgspec's stubs do not know it
"""An event copied, and its few new fields set, costs half of one that is made of all its fields."""
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class _Section:
    """A list of spans: what its resource and scope say."""

    resource: dict[str, Any]
    scope: str
    common: dict[str, Any] | None
    """Fields of every event of it; None where its spans are no events, or not to be read quickly."""
    sources: dict[str, _Patterns] = field(default_factory=dict)
    """Patterns of a recorder's events, by the text of its attributes up to the span's number."""
    source: str = _SEQUENCE
    patterns: _Patterns = field(default_factory=lambda: _Patterns({}))
    """Those of the source of the span before, which nearly always is the next one's too."""


class Quick:
    """Reads lines, and remembers what comes again; for one file or several."""

    def __init__(self) -> None:
        self._fields = _Fields()
        self._sections: dict[str, list[_Section]] = {}

    def read(self, line: str) -> tuple[list[Event], list[Span]]:
        """The events of a line, and the spans that are none or are to be read more thoroughly.

        Raises:
            Odd: the line is not of the form that is read here.
        """
        before, *pieces = line.split(_SPAN)
        if not pieces:
            raise Odd("no span")
        skeleton, held = [before], []
        first = 0
        for last in [n for n, piece in enumerate(pieces, start=1) if n == len(pieces) or piece.endswith(_SPANS)]:
            piece = pieces[last - 1]
            end = _end(piece)
            skeleton.append(piece[end:])
            pieces[last - 1] = f"{piece[:end]},"
            held.append(pieces[first:last])
            first = last
        sections = self._sections_of("".join(skeleton))
        if len(sections) != len(held) or not all(text.endswith(_SPANS) for text in skeleton[:-1]):
            raise Odd("a list of spans in an odd place")
        events: list[Event] = []
        others: list[Span] = []
        for section, found in zip(sections, held, strict=True):
            self._read(found, section, events, others)
        return events, others

    def _sections_of(self, skeleton: str) -> list[_Section]:
        known = self._sections.get(skeleton)
        if known is None:
            if len(self._sections) >= _MOST_REMEMBERED:
                self._sections.clear()
            known = self._sections[skeleton] = [
                _Section(resource, scope, decode.common(resource) if scope == semconv.SCOPE else None)
                for resource, scope, _ in otlp_json.sections(_loaded(skeleton))
            ]
        return known

    def _read(self, pieces: list[str], section: _Section, events: list[Event], others: list[Span]) -> None:
        for piece in pieces:
            try:
                events.append(self._event(piece, section))
            except (Odd, KeyError, TypeError, AttributeError):
                if not piece.endswith(","):
                    raise Odd("a span that ends oddly") from None
                others.append(otlp_json.span(_loaded(_SPAN + piece[:-1]), section.resource, section.scope))

    def _event(self, piece: str, section: _Section) -> Event:
        """Raises Odd, or what looking up and setting raise, for what is no event, or none of the exact form."""
        head = _OURS.match(piece) or _HEAD.match(piece)
        if head is None or section.common is None:
            raise Odd("the beginning of a span")
        if piece.endswith(_PLAIN_END):
            end = -len(_PLAIN_END)
        elif piece.endswith(_STATUS_END):
            end = -len(_STATUS_END)
        else:
            raise Odd("the end of a span")
        begin = head.end()
        if not piece.startswith(section.source, begin):
            self._find_source(piece, begin, section, section.common)
        number, *attributes = piece[begin + len(section.source) : end].split(_NEXT)
        sequence = _number(number[: -len(_END)])
        if sequence is None or not number.endswith(_END):
            raise Odd("a number")
        trace_id, span_id, name, start, end_text = head.groups()
        start_ns, end_ns = int(start), int(end_text)
        if start_ns >= LATEST_NS or end_ns >= LATEST_NS:
            raise Odd("a time")
        event = _copied(section.patterns[name])
        event.trace_id, event.span_id = trace_id, span_id
        event.start_ns, event.end_ns = start_ns, end_ns
        event.sequence = sequence
        for key, value in map(self._fields.__getitem__, attributes):
            setattr(event, key, value)
        for key in _NEEDED[name]:
            if getattr(event, key) is None:
                raise Odd(f"a span without {key}")
        return event

    def _find_source(self, piece: str, begin: int, section: _Section, common: dict[str, Any]) -> None:
        """Find what a span says of its recorder, and take it for what the next span says."""
        end = piece.find(_SEQUENCE, begin)
        if end < 0:
            raise Odd("a span without a number")
        source = piece[begin : end + len(_SEQUENCE)]
        known = section.sources.get(source)
        if known is None:
            if len(section.sources) >= _MOST_REMEMBERED:
                section.sources.clear()
            told = dict(map(self._fields.__getitem__, piece[begin:end].split(_NEXT)))
            known = section.sources[source] = _Patterns({**common, **told})
        section.source, section.patterns = source, known


class _Patterns(dict[str, Event]):
    """The kind of a recorder's event -> one to be copied, which says what all of them say."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__()
        self._told = told

    def __missing__(self, name: str) -> Event:
        event = self[name] = CLASSES[name](**{**dict.fromkeys((*_NEW, *_NEEDED[name])), **self._told})
        return event


class _Fields(dict[str, tuple[str, Any]]):
    """The text of an attribute -> the event's field and its value, read when it is seen first.

    Raises Odd, KeyError or TypeError for one that is none, is unknown, or has a value that its kind cannot have.
    """

    def __missing__(self, text: str) -> tuple[str, Any]:
        key, _, rest = text.partition(_VALUE)
        if (value := _plain(rest)) is not None:
            read = decode.field(key, value)
        else:
            data = _loaded(f'{{"key":"{text}}}')
            if data.keys() != {"key", "value"}:
                raise Odd("an attribute")
            read = decode.field(data["key"], otlp_json.value(data["value"]))
        if len(text) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[text] = read
        return read


def _plain(text: str) -> int | str | Sequence[int | str] | None:
    """The value of an attribute that is a small number, plain text, or a list of either, as block tables and chunks' keys
    are; None for any other."""
    if text.startswith(_INT) and text.endswith(_END):
        return _number(text[len(_INT) : -len(_END)])
    if text.startswith(_STRING) and text.endswith(_END):
        return _text(text[len(_STRING) : -len(_END)])
    if text.startswith(_INTS) and text.endswith(_LIST_END):
        held = text[len(_INTS) : -len(_LIST_END)].split(_NEXT_INT)
        digits = "".join(held)
        plain = digits.isdigit() and digits.isascii() and all(held) and max(map(len, held)) <= _LONGEST_COUNT
        return list(map(int, held)) if plain else None
    if text.startswith(_STRINGS) and text.endswith(_LIST_END):
        texts = text[len(_STRINGS) : -len(_LIST_END)].split(_NEXT_STRING)
        return None if any(_text(each) is None for each in texts) else texts
    return None


def _number(text: str) -> int | None:
    """A number that is surely none too large; None for any other text."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= _LONGEST_COUNT else None


def _text(text: str) -> str | None:
    """What a JSON text without escapes says; None where it may say something else, or nothing."""
    return None if _QUOTE in text or _BACKSLASH in text or not text.isprintable() else text


def _end(piece: str) -> int:
    """Where the last span of a list ends."""
    try:
        return _DECODER.raw_decode(_SPAN + piece)[1] - len(_SPAN)
    except ValueError as error:
        raise Odd(str(error)) from error


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Odd(str(error)) from error
