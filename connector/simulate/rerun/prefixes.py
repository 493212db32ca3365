"""Made-up tokens with the recorded prefix sharing: equal where the recording shows that two requests had the same ones.

No prompt text is recorded, and none is needed: what a connector sees of tokens is their number, and which of them are the
same. At level detailed vLLM's own hashes of the blocks tell it; at any level the keys of chunks do, where the connector's are
known. Blocks and chunks get what was recorded as their hash, so a connector whose keys are vLLM's block hashes finds, and
names, what the recorded one did. Where neither was recorded, lengths are all there is: a request that had something in a
cache, at its first lookup, shares that much with the latest one that had computed as much.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from kvtrail.connector.simulate.rerun.calls import Call, Method
from kvtrail.tracer.model.events import Event, LoadPlan, Lookup, RequestEnd, RequestStart, Schedule, StorePlan
from kvtrail.tracer.replay.hashes import DIGITS, split

TOKENS = range(3, 512)
"""The token ids that the made-up model knows as words."""

Life = tuple[str, int]
"""A request, and how often its id had been used before."""


class Prefixes:
    """Who shares which tokens with whom. Blocks are the unit: of a block, two requests share all tokens or none."""

    def __init__(self, calls: Sequence[Call], *, block_size: int, chunk_size: int | None) -> None:
        self.block_size = block_size
        self._per_chunk = max(1, (chunk_size or block_size) // block_size)
        self._keys: dict[Life, dict[int, str]] = {}
        self._blocks: dict[Life, list[str]] = {}
        self._whole: dict[str, str] = {}
        """The longer keys of chunks, by as many digits as a block's hash has."""
        self._likeness: dict[Life, tuple[Life, int]] = {}
        self._hashes: dict[Life, list[bytes]] = {}
        lives = [(event, life) for event, life in _with_lives(calls)]
        for event, life in lives:
            self._note_keys(event, life)
            if isinstance(event, RequestStart | RequestEnd) and event.block_hashes:
                self._blocks.setdefault(life, []).extend(split(event.block_hashes))
        self._complete()
        self.known = bool(self._keys or self._blocks)
        """Whether the sharing is recorded; else it is guessed by lengths."""
        if not self.known:
            self._guess(lives)

    def tokens(self, life: Life, first: int, end: int) -> list[int]:
        """The tokens of a request from number `first` to before `end`."""
        begin = first // self.block_size
        tokens: list[int] = []
        for block in range(begin, -(-end // self.block_size)):
            rng = random.Random(self._content(life, block))
            tokens += rng.choices(TOKENS, k=self.block_size)
        return tokens[first - begin * self.block_size : end - begin * self.block_size]

    def block_hashes(self, life: Life, first: int, end: int) -> list[bytes]:
        """Hashes of the blocks from number `first` to before `end`, each standing for the whole prefix up to its end."""
        held = self._hashes.setdefault(life, [])
        while len(held) < end:
            held.append(self._recorded_hash(life, len(held)) or self._made_up_hash(life, len(held)))
        return held[first:end]

    def shows(self, life: Life, end: int) -> bool:
        """Whether the recording shows with whom a request shares its tokens from the first to before `end`."""
        blocks, keys = self._blocks.get(life, ()), self._keys.get(life, {})
        chunks = range(end // (self._per_chunk * self.block_size))
        return end // self.block_size <= len(blocks) or all(chunk in keys for chunk in chunks)

    def _recorded_hash(self, life: Life, block: int) -> bytes | None:
        chunk, within = divmod(block, self._per_chunk)
        blocks = self._blocks.get(life, ())
        if block < len(blocks):
            key: str | None = self._whole.get(blocks[block], blocks[block])
        else:
            key = self._keys.get(life, {}).get(chunk) if within == self._per_chunk - 1 else None
        if key is None:
            return None
        try:
            return bytes.fromhex(key)
        except ValueError:  # a connector may name its chunks as it likes
            return key.encode()

    def _made_up_hash(self, life: Life, block: int) -> bytes:
        return hashlib.sha256(self._content(life, block).encode()).digest()

    def _content(self, life: Life, block: int) -> str:
        """A name for a block's tokens, and with them for the prefix that they end: no two prefixes share it."""
        if block < len(blocks := self._blocks.get(life, ())):
            return blocks[block]
        chunk, within = divmod(block, self._per_chunk)
        if (key := self._keys.get(life, {}).get(chunk)) is not None:
            return f"{key}/{within}"
        like, shared = self._likeness.get(life, (life, 0))
        if (block + 1) * self.block_size <= shared:
            return self._content(like, block)
        request, used_before = life
        return f"{request}/{used_before}/{block}"

    def _note_keys(self, event: Event, life: Life) -> None:
        if not isinstance(event, Lookup | LoadPlan | StorePlan) or not event.chunk_keys:
            return
        start = 0 if isinstance(event, Lookup) else event.start
        if start is not None:
            first = start // (self._per_chunk * self.block_size)
            self._keys.setdefault(life, {}).update(enumerate(event.chunk_keys, start=first))
            self._whole.update((key[:DIGITS], key) for key in event.chunk_keys)

    def _complete(self) -> None:
        """A key stands for a whole prefix, so what comes before it in one request comes before it in every one."""
        before: dict[str, str] = {}
        for keys in self._keys.values():
            before.update((key, keys[chunk - 1]) for chunk, key in keys.items() if chunk - 1 in keys)
        for keys in self._keys.values():
            for chunk in range(max(keys), 0, -1):
                if chunk - 1 not in keys and (key := before.get(keys.get(chunk, ""))) is not None:
                    keys[chunk - 1] = key

    def _guess(self, lives: Iterable[tuple[Event, Life]]) -> None:
        computed: dict[Life, int] = {}
        for event, life in lives:
            if isinstance(event, Lookup) and event.epoch == 0:
                held = max(event.computed, event.matched or event.computed + (event.returned or 0))
                others = [other for other, count in computed.items() if count >= held and other != life]
                if held and others and life not in self._likeness:
                    self._likeness[life] = (others[-1], held)
            elif isinstance(event, Schedule):
                computed[life] = max(computed.get(life, 0), event.computed + event.scheduled)


def _with_lives(calls: Iterable[Call]) -> Iterable[tuple[Event, Life]]:
    """The events of requests, each with the life that it tells of."""
    used: Counter[str] = Counter()
    for call in calls:
        for event in call.events:
            if event.request is None:
                continue
            if isinstance(event, RequestStart) and call.method is Method.BEGIN:
                used[event.request] += 1
            yield event, (event.request, max(0, used[event.request] - 1))
