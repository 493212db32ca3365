"""Which block hashes are told, and which are only referred to: a prefix that many requests share is told once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from time import monotonic_ns
from typing import Any

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.model.semconv import HASH_BYTES, MOST_TOLD

AGAIN_NS = 600 * 10**9
"""After how long everything is told anew, to a tracer that began later, too."""
_SHORT = itemgetter(slice(-HASH_BYTES, None))
Told = tuple[bytes | None, int | None]
"""Hashes, shortened, and the number of the block that the first one is of; None where that is 0."""


class BlockHashes:
    """The block hashes that one connector object has told of its engine's requests.

    All are forgotten at once, so that before a block that is remembered all are: when there are too many of them, when events
    were lost, and after a while.
    """

    def __init__(self, recorder: Recorder, tells: bool = True) -> None:
        """`tells` is false where no hashes are to be told."""
        self._recorder, self._tells = recorder, tells
        self._told: set[bytes] = set()
        self._dropped = 0
        self._again_ns = 0

    def at_start(self, context: RequestContext, request: Any) -> tuple[bytes | None, int | None, bytes | None]:
        """The hashes of a prompt that nobody has told yet, the number of the first one's block, and the hash of the block
        before it; in detail only."""
        if not (self._tells and self._recorder.level.detailed and context.recorded):
            return None, None, None
        hashes = getattr(request, "block_hashes", ())
        known = context.hashed = self._known(hashes)
        fresh, _ = self.since(context, request)
        return fresh, known or None, _SHORT(hashes[known - 1]) if known else None

    def since(self, context: RequestContext, request: Any) -> Told:
        """The hashes of the blocks that the request has filled since it was asked for them last; in detail only."""
        hashes, first = getattr(request, "block_hashes", ()), context.hashed
        if len(hashes) <= first or not (self._tells and self._recorder.level.detailed and context.recorded):
            return None, None
        fresh = hashes[first:]
        context.hashed += len(fresh)
        self._told.update(fresh)
        return b"".join(map(_SHORT, fresh)), first or None

    def _known(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain's hashes have been told."""
        now_ns, dropped = monotonic_ns(), self._recorder.dropped
        if len(self._told) >= MOST_TOLD or dropped != self._dropped or now_ns >= self._again_ns:
            self._told.clear()
            self._dropped, self._again_ns = dropped, now_ns + AGAIN_NS
        told = self._told
        if not hashes or hashes[-1] in told:
            return len(hashes)
        return bisect_left(hashes, True, key=lambda each: each not in told)
