"""Which block hashes are told, and which are only referred to: a prefix that many requests share is told once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from time import monotonic_ns
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, proxy

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.sizes import MOST_BYTES
from kvtrail.connector.tracing.seen_blocks import SeenBlocks
from kvtrail.tracer.events.semconv import HASH_BYTES, MOST_TOLD

AGAIN_NS = 600 * 10**9
"""After how long everything is told anew, to a tracer that began later, too."""
MOST_AT_ONCE = MOST_BYTES // HASH_BYTES
"""Hashes in one event: those of a prompt of two million tokens."""
_SHORT = itemgetter(slice(-HASH_BYTES, None))
_HELD: WeakKeyDictionary[Recorder, BlockHashes] = WeakKeyDictionary()
Told = tuple[bytes | None, int | None]
"""Hashes, shortened, and the number of the block that the first one is of; None where that is 0."""


class Start(NamedTuple):
    """What is told of a prompt: the hashes that nobody has told yet, the number of the block that the first of them is of,
    the hash of the block before it, and how many of its first blocks may have been in an earlier request."""

    hashes: bytes | None
    first: int | None
    after: bytes | None
    seen: int | None


UNTOLD = Start(None, None, None, None)


class BlockHashes:
    """The block hashes that a recorder has told of its engine's requests.

    All are forgotten at once, so that before a block that is remembered all are: when there are too many of them, when events
    were lost, and after a while.
    """

    @classmethod
    def of(cls, recorder: Recorder, *, tells: bool) -> BlockHashes:
        """The one of this recorder: connectors of one engine share it, and the first decides whether it `tells` any."""
        held = _HELD.get(recorder)
        if held is None:
            held = _HELD[recorder] = cls(recorder, tells)
        return held

    def __init__(self, recorder: Recorder, tells: bool = True) -> None:
        """`tells` is false where no hashes are to be told."""
        self._recorder: Recorder = proxy(recorder)  # or else what is held for it would keep it
        self._tells = tells
        self._seen: SeenBlocks | None = SeenBlocks() if tells else None
        """None, too, once a request was left out, whose blocks nobody knows."""
        self._told: set[bytes] = set()
        self._dropped = 0
        self._again_ns = 0

    def at_start(self, context: RequestContext, request: Any) -> Start:
        """What is told of a prompt; in detail only."""
        if not (self._tells and self._recorder.level.detailed and context.recorded):
            self._seen = None
            return UNTOLD
        hashes = getattr(request, "block_hashes", ())
        seen = None if self._seen is None else self._seen.first_of(hashes)
        known = context.hashed = self._known(hashes)
        fresh, _ = self.since(context, request)
        if self._seen is not None:
            self._seen.enter(hashes[seen:])
        return Start(fresh, known or None, _SHORT(hashes[known - 1]) if known else None, seen)

    def since(self, context: RequestContext, request: Any) -> Told:
        """The hashes of the blocks that the request has filled since it was asked for them last; in detail only. Of more than
        `MOST_AT_ONCE` the rest comes when it is asked for them next: a span may not be larger."""
        hashes, first = getattr(request, "block_hashes", ()), context.hashed
        if len(hashes) <= first:
            return None, None
        if not (self._tells and self._recorder.level.detailed and context.recorded):
            self._seen = None
            return None, None
        fresh = hashes[first : first + MOST_AT_ONCE]
        context.hashed += len(fresh)
        self._told.update(fresh)
        if self._seen is not None:
            self._seen.enter(fresh)
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
