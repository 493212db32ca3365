"""Events of hand-offs in the store: one row each, from which the same event can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.events.events import CLASSES

_encode = msgspec.json.Encoder().encode


class HandoffRow(NamedTuple):
    """A `RemoteHandoff`.

    Attributes:
        engine, recorder, sequence, kind, at_ns: fields of the event; `at_ns` is its end.
        request, keys, lost_number, loads, is_own: as in `RemoteHandoff`.
        body: the event as a JSON object with the names on the wire, without default values.
    """

    engine: str
    recorder: str
    sequence: int
    kind: str
    at_ns: int
    request: str
    keys: tuple[str, ...]
    lost_number: int
    loads: int
    is_own: bool
    body: str


def row_of(heard: RemoteHandoff) -> HandoffRow:
    """The row of an event. Raises UnicodeError or OverflowError if no database can hold it."""
    event = heard.event
    fields = msgspec.structs.fields(event)
    values = {
        each.encode_name: getattr(event, each.name) for each in fields if getattr(event, each.name) != each.default
    }
    about = event.engine, event.recorder, event.sequence, event.kind, event.end_ns
    kept = heard.request, heard.keys, heard.lost_number, heard.loads, heard.is_own
    return HandoffRow(*about, *kept, _encode(values).decode())


def heard_of(rows: Iterable[HandoffRow]) -> Iterator[RemoteHandoff]:
    """The events of rows, without events that only another version of kvtrail can read."""
    for row in rows:
        try:
            event = msgspec.json.decode(row.body, type=CLASSES[row.kind])
        except (KeyError, msgspec.MsgspecError):
            continue
        yield RemoteHandoff(event, row.request, row.keys, row.lost_number, row.loads, row.is_own)
