"""Transfers and notifications between engines, as they may be recorded: probes see more than a level or a setting allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvtrail.tracer.events.events import FIELDS, LONGEST_REASON
from kvtrail.tracer.events.semconv import Kind

_BLOCKS = ("blocks_ids", "blocks_by_group", "peer_blocks_ids")


class _Places(NamedTuple):
    """Where in an event's values those are that are not recorded as they are."""

    blocks: tuple[int, ...]
    peer_request: int
    reason: int

    @classmethod
    def of(cls, kind: Kind) -> _Places:
        fields = [each.field for each in FIELDS[kind]]
        blocks = tuple(n for n, field in enumerate(fields) if field in _BLOCKS)
        return cls(blocks, fields.index("peer_request"), fields.index("reason"))


_PLACES = {kind: _Places.of(kind) for kind in (Kind.XFER, Kind.NOTIFICATION)}


def as_recorded(
    kind: Kind, values: tuple[Any, ...], name_of: Callable[[str], str], *, with_blocks: bool
) -> tuple[Any, ...]:
    """The values of any event that a probe reports: `name_of` gives the other engine's request its recorded name."""
    places = _PLACES.get(kind)
    if places is None:
        return values
    recorded = list(values)
    if not with_blocks:
        for place in places.blocks:
            recorded[place] = None
    if (request_id := recorded[places.peer_request]) is not None:
        recorded[places.peer_request] = name_of(request_id)
    if (reason := recorded[places.reason]) is not None:
        recorded[places.reason] = reason[:LONGEST_REASON]
    return tuple(recorded)
