"""Where the chunks of open requests lie, and which of a request's own chunks its stores have pushed out. Pure.

It follows chunks, since an eviction names a chunk and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.events import Evict, Plan
from kvtrail.tracer.ledger.chunk_keys import ChunkKeys


class Placed(NamedTuple):
    """Chunks that follow each other: their first token in the request, and the tokens of each; 1 if that is not known."""

    connector_id: str
    start: int
    size: int
    keys: Sequence[str]


class PushedOut(NamedTuple):
    """A chunk that left the store, and its first token in the request."""

    event: Evict
    start: int


@dataclass(slots=True)
class OwnChunks:
    """The chunks of one engine's open requests.

    Attributes:
        placed: where chunks that were stored or loaded lie in their request.
        pushed_out: by request and key, its own chunks that its stores have pushed out of a store without tiers and without
            others' chunks.
    """

    placed: dict[str, list[Placed]] = field(default_factory=dict)
    pushed_out: dict[str, dict[str, PushedOut]] = field(default_factory=dict)

    def clear(self) -> None:
        """Events are missing: none of it is certain."""
        self.placed.clear()
        self.pushed_out.clear()

    def enter_plan(self, event: Plan) -> None:
        """Note where the chunks of a plan lie in their request: they follow each other."""
        if event.chunk_keys and event.start is not None:
            placed = Placed(event.connector_id, event.start, event.chunk_size or 1, event.chunk_keys)
            self.placed.setdefault(event.request or "", []).append(placed)

    def enter_evict(self, event: Evict, keys: ChunkKeys) -> None:
        """A request's store may have made room; `keys` is what was known of its store before. A store that holds others'
        chunks, too, may well think these more useful."""
        request, key = event.pushed_by, event.chunk_key
        if request not in self.placed or event.pool_tier is not None or key is None:
            return
        placed = [each for each in self.placed[request] if each.connector_id == event.connector_id]
        place = next((each for each in placed if key in each.keys), None)
        if place is not None and keys.holds_nothing_but({k for each in placed for k in each.keys}):
            out = PushedOut(event, place.start + place.keys.index(key) * place.size)
            self.pushed_out.setdefault(request, {})[key] = out

    def enter_end(self, request: str) -> None:
        """A request has ended."""
        self.placed.pop(request, None)
        self.pushed_out.pop(request, None)
