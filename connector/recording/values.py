"""The values of an event, as they can be sent: not too large for a span, and each of the type that its attribute has."""

from __future__ import annotations

import hashlib
from itertools import compress
from operator import index
from typing import Any

from kvtrail.connector.recording.ring import MAY_BE_LARGE, EventTuple
from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS
from kvtrail.tracer.events.semconv import STEP_SPAN

MAX_ITEMS = 65_536
"""Items of a list: the blocks of a prompt of a million tokens."""
MAX_BYTES = 1 << 19
"""Of a byte string, and of all texts of a list: the hashes of as many blocks. kvtrail takes 1 MiB over gRPC."""
MAX_TEXT = 4096
"""Characters of a text; of a longer one the beginning is recorded, and a digest of all of it."""
_BEGINNING = 1024
_TYPES = {
    str(kind): tuple(a.type for a in attributes) for kind, attributes in (*FIELDS.items(), (STEP_SPAN, STEP_FIELDS))
}


def bounded(kind: str, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The values of an event, with None for lists and bytes that are too large, and long texts cut; and whether anything is
    None for that."""
    small, left_out = list(values), False
    for n, value in compress(enumerate(values), MAY_BE_LARGE[kind]):
        if type(value) is str and len(value) > MAX_TEXT:
            digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            small[n] = f"{value[:_BEGINNING]}~{digest}"
        elif value is not None and _is_too_large(value):
            small[n], left_out = None, True
    return tuple(small), left_out


def _is_too_large(value: Any) -> bool:
    try:
        if isinstance(value, str | bytes | bytearray | memoryview):
            return len(value) > MAX_BYTES
        return len(value) > MAX_ITEMS or (isinstance(value[0], str) and sum(map(len, value)) > MAX_BYTES)
    except Exception:  # an odd object: what it is, is found when it is encoded
        return False


def with_declared_types(event: EventTuple) -> EventTuple | None:
    """The event of an odd connector with each value of the type that its attribute has, or None: numbers of numpy's, 1 for
    True, enumerations. None if it cannot be recorded at all. Only asked when a batch cannot be encoded as it is, so that one
    odd object costs one event at most."""
    kind, source, (root, caller, request_id, sampled), *numbers, error, values = event
    try:
        sequence, request_sequence, epoch, start_ns, end_ns = (int(index(number)) for number in numbers)
        identity = root, caller, str.__str__(request_id), bool(sampled)
        error = None if error is None else str(error)
        values = tuple(_as(type_, value) for type_, value in zip(_TYPES[kind], values, strict=True))
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
