"""Selects the block hashes to record: a prefix that many requests share is recorded once, and then only referenced."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from time import monotonic_ns
from typing import Any
from weakref import WeakKeyDictionary, proxy

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.values import MAX_BYTES
from kvtrail.tracer.events.semconv import HASH_BYTES, MAX_REPORTED

RESYNC_NS = 600 * 10**9
"""Interval after which all hashes are recorded again, for a sidecar that started later."""
MAX_PER_EVENT = MAX_BYTES // HASH_BYTES
"""Maximum number of hashes in one event: enough for a prompt of two million tokens."""
_SHORT = itemgetter(slice(-HASH_BYTES, None))
_SEEN_BYTES = 3
_PLACE = itemgetter(slice(-_SEEN_BYTES, None))
_number = partial(int.from_bytes, byteorder="big")
SEEN_BITS = 1 << 8 * _SEEN_BYTES
"""Size of the filter: 2 MiB. With a million blocks, one of 17 answers is wrong; with many millions it has no information."""
_BY_RECORDER: WeakKeyDictionary[Recorder, BlockHashes] = WeakKeyDictionary()
NewHashes = tuple[bytes | None, int | None]
"""Shortened hashes, and the block number of the first one; None for 0."""
PromptHashes = tuple[bytes | None, int | None, bytes | None, int | None]
"""The recorded data of a prompt: the new hashes, the block number of the first one, the hash of the block before it, and the
number of its first blocks that may have been in an earlier request."""
NO_HASHES: PromptHashes = (None, None, None, None)


class BlockHashes:
    """The block hashes that a recorder has recorded for its engine's requests.

    All hashes are forgotten together, so that all blocks before a remembered block are remembered, too. This happens
    when there are too many hashes, when events were lost, and periodically.
    """

    @classmethod
    def of(cls, recorder: Recorder, *, enabled: bool) -> BlockHashes:
        """The instance of this recorder. An engine's connectors share it; the first one decides whether hashes are
        recorded."""
        held = _BY_RECORDER.get(recorder)
        if held is None:
            held = _BY_RECORDER[recorder] = cls(recorder, enabled)
        return held

    def __init__(self, recorder: Recorder, enabled: bool = True) -> None:
        """`enabled` says whether any hashes are recorded."""
        self._recorder: Recorder = proxy(recorder)  # a strong reference would keep it alive
        self._enabled = enabled
        self._seen: SeenBlocks | None = SeenBlocks() if enabled else None
        """Also None after a request was omitted, since its blocks are unknown."""
        self._recorded: set[bytes] = set()
        self._dropped = 0
        self._resync_ns = 0

    def at_start(self, context: RequestContext, request: Any) -> PromptHashes:
        """The data to record for a prompt; only at level `detailed`."""
        if not (self._enabled and self._recorder.level.detailed and context.recorded):
            self._seen = None
            return NO_HASHES
        hashes = getattr(request, "block_hashes", ())
        seen = None if self._seen is None else self._seen.first_of(hashes)
        known = context.hashed = self._known(hashes)
        fresh, _ = self.since(context, request)
        if self._seen is not None:
            self._seen.enter(hashes[context.hashed :])
        return fresh, known or None, _SHORT(hashes[known - 1]) if known else None, seen

    def since(self, context: RequestContext, request: Any) -> NewHashes:
        """The hashes of the blocks that the request has filled since the last call; only at level `detailed`. If there are
        more than `MAX_PER_EVENT`, the rest follows with the next call, since the size of a span is limited."""
        hashes, first = getattr(request, "block_hashes", ()), context.hashed
        if len(hashes) <= first:
            return None, None
        if not (self._enabled and self._recorder.level.detailed and context.recorded):
            self._seen = None
            return None, None
        fresh = hashes[first : first + MAX_PER_EVENT]
        context.hashed += len(fresh)
        self._recorded.update(fresh)
        if self._seen is not None:
            self._seen.enter(fresh)
        return b"".join(map(_SHORT, fresh)), first or None

    def _known(self, hashes: Sequence[bytes]) -> int:
        """The number of a chain's recorded hashes."""
        now_ns, dropped = monotonic_ns(), self._recorder.dropped
        if len(self._recorded) >= MAX_REPORTED or dropped != self._dropped or now_ns >= self._resync_ns:
            self._recorded.clear()
            self._dropped, self._resync_ns = dropped, now_ns + RESYNC_NS
        recorded = self._recorded
        if not hashes or hashes[-1] in recorded:
            return len(hashes)
        return bisect_left(hashes, True, key=lambda each: each not in recorded)


class SeenBlocks:
    """Remembers blocks by their hashes, without forgetting any."""

    def __init__(self) -> None:
        self._bits = bytearray(SEEN_BITS // 8)

    def enter(self, hashes: Sequence[bytes]) -> None:
        """Add blocks of a request."""
        bits = self._bits
        for place in map(_number, map(_PLACE, hashes)):
            bits[place >> 3] |= 1 << (place & 7)

    def first_of(self, chain: Sequence[bytes]) -> int:
        """The number of a chain's first blocks that may have been in a request. If a block was, so were all before it."""
        return bisect_left(chain, True, key=lambda each: not self._may_hold(each))

    def _may_hold(self, block: bytes) -> bool:
        place = _number(_PLACE(block))
        return bool(self._bits[place >> 3] & 1 << (place & 7))
