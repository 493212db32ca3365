"""Makes the values of an event sendable: not too large for a span, and of the attribute's type."""

from __future__ import annotations

import hashlib
from itertools import compress
from operator import index
from typing import Any

from kvtrail.connector.recording.ring import MAY_BE_LARGE, EventTuple
from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS
from kvtrail.tracer.events.semconv import STEP_SPAN

MAX_ITEMS = 65_536
"""Maximum number of items in a list: the blocks of a prompt of a million tokens."""
MAX_BYTES = 1 << 19
"""Maximum size of a byte string, and of all texts of a list: the hashes of as many blocks. kvtrail accepts 1 MiB over
gRPC."""
MAX_TEXT = 4096
"""Maximum number of characters in a text; for a longer one, its beginning and a digest of the whole are recorded."""
_BEGINNING = 1024
_TYPES = {
    str(kind): tuple(a.type for a in attributes) for kind, attributes in (*FIELDS.items(), (STEP_SPAN, STEP_FIELDS))
}


def bounded(kind: str, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The values of an event, with None for lists and bytes that are too large, and long texts shortened; and whether a value
    was replaced with None."""
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
    except Exception:  # an unexpected object, which the encoder will report
        return False


def with_declared_types(event: EventTuple) -> EventTuple | None:
    """The event with each value converted to its attribute's type, or None: numpy numbers, 1 for True, enumerations. None if
    it cannot be recorded at all. Called only if a batch cannot be encoded unchanged, so that an unexpected object costs at
    most one event."""
    kind, source, (root, caller, request_id, sampled), *numbers, error, values = event
    try:
        sequence, request_sequence, epoch, start_ns, end_ns = (int(index(number)) for number in numbers)
        identity = root, caller, str.__str__(request_id), bool(sampled)
        error = None if error is None else str(error)
        values = tuple(_as(type_, value) for type_, value in zip(_TYPES[kind], values, strict=True))
        kind = str.__str__(kind)
        return kind, source, identity, sequence, request_sequence, epoch, start_ns, end_ns, error, values
    except Exception:  # an unexpected object's methods may raise anything
        return None


def _as(type_: type, value: Any) -> Any:
    """A value converted to this type; None if that is impossible."""
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
