"""What an odd connector gives, as plain Python: numbers of numpy's, 1 for True, enumerations. What fits no type is unknown.

Only asked when a batch cannot be encoded as it is, so that one odd object costs one event at most.
"""

from __future__ import annotations

from operator import index
from typing import Any

from kvtrail.connector.recording.ring import EventTuple
from kvtrail.tracer.events import semconv

_TYPES = {str(kind): tuple(a.type for a in attributes) for kind, attributes in semconv.FIELDS.items()}
_TYPES[semconv.STEP_SPAN] = tuple(a.type for a in semconv.STEP_FIELDS)


def plain(event: EventTuple) -> EventTuple | None:
    """The event, with each value of the type that its attribute has, or None; None if it cannot be told at all."""
    kind, source, (root, caller, request_id, sampled), *numbers, error, values = event
    try:
        types = _TYPES[kind]
        if len(types) != len(values):
            return None
        sequence, request_sequence, epoch, start_ns, end_ns = (int(index(number)) for number in numbers)
        identity = root, caller, str.__str__(request_id), bool(sampled)
        error = None if error is None else str(error)
        values = tuple(_as(type_, value) for type_, value in zip(types, values, strict=True))
        kind = str.__str__(kind)
        return kind, source, identity, sequence, request_sequence, epoch, start_ns, end_ns, error, values
    except Exception:  # whatever an odd object's methods may raise
        return None


def _as(type_: type, value: Any) -> Any:
    """A value as this type; None if it is no such value."""
    if value is None:
        return None
    try:
        if type_ is bool:
            return bool(value) if value in (True, False) else None
        if type_ is int:
            return int(value) if isinstance(value, float) and value.is_integer() else int(index(value))
        if type_ is str:
            return str.__str__(value)
        if type_ is bytes:
            return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
        if all(type(each) is bool for each in value):
            return tuple(value)
        return tuple(str.__str__(each) if isinstance(each, str) else int(index(each)) for each in value)
    except Exception:
        return None
