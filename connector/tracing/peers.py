"""Transfers and notifications between engines, as they may be recorded: probes see more than a level or a setting allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrail.tracer.events.events import FIELDS, LONGEST_REASON
from kvtrail.tracer.events.semconv import Kind

_BLOCKS = ("blocks_ids", "blocks_by_group", "peer_blocks_ids")
_FIELDS = {kind: tuple(each.field for each in FIELDS[kind]) for kind in (Kind.XFER, Kind.NOTIFICATION)}


def as_recorded(
    kind: Kind, values: tuple[Any, ...], name_of: Callable[[str], str], *, with_blocks: bool
) -> tuple[Any, ...]:
    """The values of any event that a probe reports: `name_of` gives the other engine's request its recorded name."""
    fields = _FIELDS.get(kind)
    if fields is None:
        return values
    return tuple(
        None if value is None or (field in _BLOCKS and not with_blocks)
        else name_of(value) if field == "peer_request"
        else value[:LONGEST_REASON] if field == "reason"
        else value
        for field, value in zip(fields, values, strict=True)
    )  # fmt: skip
