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
from dataclasses import dataclass, field
from typing import Any

from tracer import decode, otlp_json, semconv
from tracer.events import CLASSES, Event
from tracer.otlp_json import Odd
from tracer.spans import LATEST_NS, Span

_MOST_REMEMBERED = 8192
_LONGEST_COUNT = len(str(decode.MOST)) - 1
"""Digits of a number that is surely none too large."""
_LONGEST_REMEMBERED = 200
"""Characters of an attribute. A longer one is a block table or a list of keys, which seldom comes again."""
_SPANS = ',"spans":['
_SPAN = '{"traceId":"'
_NEXT = '},{"key":"'
_INT = '","value":{"intValue":"'
_INTS, _NEXT_INT, _INTS_END = '","value":{"arrayValue":{"values":[{"intValue":"', '"},{"intValue":"', '"}]}}'
_SEQUENCE = _NEXT + semconv.SEQUENCE.key + _INT
_AFTER_INT = '"}' + _NEXT
_PLAIN_END = "}]},"
_STATUS_END = '}],"status":{}},'
_HEAD = re.compile(
    r'([0-9a-f]{32})","spanId":"([0-9a-f]{16})",(?:"traceState":"",)?(?:"parentSpanId":"(?:[0-9a-f]{16})?",)?'
    r'(?:"flags":[0-9]{1,10},)?"name":"([^"\\]*)",(?:"kind":[0-9],)?"startTimeUnixNano":"([0-9]{1,19})",'
    r'"endTimeUnixNano":"([0-9]{1,19})",(?:"droppedAttributesCount":0,)?"attributes":\[\{"key":"',
    re.ASCII,
)
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class _Section:
    """A list of spans: what its resource and scope say."""

    resource: dict[str, Any]
    scope: str
    common: dict[str, Any] | None
    """Fields of every event of it; None where its spans are no events, or not to be read quickly."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The same with the fields of its recorder's attributes, by their text."""


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
        for last, piece in enumerate(pieces):
            if piece.endswith(_SPANS) or last == len(pieces) - 1:
                end = _end(piece)
                skeleton.append(piece[end:])
                pieces[last] = f"{piece[:end]},"
                held.append(pieces[first : last + 1])
                first = last + 1
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
            except (Odd, KeyError, TypeError):
                if not piece.endswith(","):
                    raise Odd("a span that ends oddly") from None
                others.append(otlp_json.span(_loaded(_SPAN + piece[:-1]), section.resource, section.scope))

    def _event(self, piece: str, section: _Section) -> Event:
        """Raises Odd, KeyError or TypeError for what is no event, or none of the exact form."""
        head = _HEAD.match(piece)
        if head is None or section.common is None:
            raise Odd("the beginning of a span")
        trace_id, span_id, name, start, end = head.groups()
        if piece.endswith(_PLAIN_END):
            attributes = piece[head.end() : -len(_PLAIN_END)]
        elif piece.endswith(_STATUS_END):
            attributes = piece[head.end() : -len(_STATUS_END)]
        else:
            raise Odd("the end of a span")
        start_ns, end_ns = int(start), int(end)
        if start_ns >= LATEST_NS or end_ns >= LATEST_NS:
            raise Odd("a time")
        source, numbered, rest = attributes.partition(_SEQUENCE)
        number, more, rest = rest.partition(_AFTER_INT)
        if not more:
            if not number.endswith('"}'):
                raise Odd("the end of a span")
            number = number[:-2]
        if not (numbered and number.isdigit() and number.isascii() and len(number) <= _LONGEST_COUNT):
            raise Odd("a number")
        known = section.sources.get(source)
        if known is None:
            known = self._source(source, section, section.common)
        fields = known.copy()
        fields["trace_id"], fields["span_id"] = trace_id, span_id
        fields["start_ns"], fields["end_ns"] = start_ns, end_ns
        fields["sequence"] = int(number)
        if more:
            fields.update(map(self._fields.__getitem__, rest.split(_NEXT)))
        return CLASSES[name](**fields)

    def _source(self, text: str, section: _Section, common: dict[str, Any]) -> dict[str, Any]:
        if len(section.sources) >= _MOST_REMEMBERED:
            section.sources.clear()
        known = section.sources[text] = {**common, **dict(map(self._fields.__getitem__, text.split(_NEXT)))}
        return known


class _Fields(dict[str, tuple[str, Any]]):
    """The text of an attribute -> the event's field and its value, read when it is seen first.

    Raises Odd, KeyError or TypeError for one that is none, is unknown, or has a value that its kind cannot have.
    """

    def __missing__(self, text: str) -> tuple[str, Any]:
        key, is_int, rest = text.partition(_INT)
        if is_int and rest.endswith('"}'):
            read = decode.field(key, otlp_json.integer(rest[:-2]))
        elif (numbers := _numbers(text)) is not None:
            read = decode.field(*numbers)
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


def _numbers(text: str) -> tuple[str, list[int]] | None:
    """The key and the numbers of an attribute that is a list of small ones, which a block table is; None for any other."""
    key, is_list, rest = text.partition(_INTS)
    if not is_list or not rest.endswith(_INTS_END):
        return None
    held = rest[: -len(_INTS_END)].split(_NEXT_INT)
    digits = "".join(held)
    if not (digits.isdigit() and digits.isascii() and all(held) and max(map(len, held)) <= _LONGEST_COUNT):
        return None
    return key, list(map(int, held))


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
