"""Infers from a recording which requests shared a prefix, and makes up tokens that share the same prefixes.

No prompt text is recorded, and none is needed: connectors see only how many tokens there are, and which are equal. What is
recorded decides how well the sharing is known:

- vLLM's hashes of full blocks (level `detailed`): each stands for the whole prefix up to the end of its block.
- the keys of chunks (any level, where the connector's are known): the same, for chunks.
- otherwise lengths only: a request that had a prefix in a cache at its first lookup is assumed to share it with an earlier
  request.

`segments` gives prompts for a scenario. `Prefixes` gives tokens and hashes, block by block; hashes and keys that were
recorded are used as they are, so that a connector whose keys are vLLM's hashes finds and names what the recorded one
did.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kvtrail.connector.simulate.recorded import RecordedRequest
from kvtrail.connector.simulate.scenario import FIRST_TOKEN, Segment
from kvtrail.connector.simulate.tiny_model import VOCABULARY
from kvtrail.tracer.events.events import Event, LoadPlan, Lookup, StorePlan

TOKENS = range(FIRST_TOKEN, VOCABULARY)


def segments(
    requests: Mapping[str, RecordedRequest], *, block_size: int
) -> tuple[dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]], bool]:
    """Each request's prompt and output as segments, in the order of arrival; and whether the sharing is known.

    Blocks that always follow each other become one segment, named after the hash of the first one.
    """
    if any(request.hashes is None for request in requests.values()):
        return {name: (prompt, ()) for name, prompt in _guessed(requests).items()}, False
    after: dict[str, set[str]] = {}
    ends: Counter[str] = Counter()
    for request in requests.values():
        chain = ("", *(request.hashes or ()))
        for one, next_one in pairwise(chain):
            after.setdefault(one, set()).add(next_one)
        ends[chain[-1]] += 1
        prompt_end = request.length // block_size
        if prompt_end < len(chain):
            ends[chain[prompt_end]] += 1

    def runs(hashes: Sequence[str]) -> list[Segment]:
        joined: list[Segment] = []
        before = ""
        for block_hash in hashes:
            if joined and len(after.get(before, ())) == 1 and not ends.get(before):
                joined[-1] = (joined[-1][0], joined[-1][1] + block_size)
            else:
                joined.append((block_hash, block_size))
            before = block_hash
        return joined

    made: dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]] = {}
    for name, request in requests.items():
        hashes = request.hashes or ()
        full = min(request.length // block_size, len(hashes))
        prompt = [*runs(hashes[:full]), *_rest(name, request.length - full * block_size)]
        # The block in which the prompt ends and the output begins has a hash, but both parts of it are made up.
        made_up = min(request.max_tokens, -request.length % block_size)
        output = [(f"{name}/output", made_up)] if made_up else []
        output += runs(hashes[-(-request.length // block_size) :])
        made[name] = (tuple(prompt), tuple(output))
    return made, True


class Prefixes:
    """The tokens of a recording's requests, block by block: of a block, two requests share all tokens or none.

    Attributes:
        known: whether the sharing is recorded; otherwise it is guessed by lengths.
    """

    def __init__(
        self, requests: Mapping[str, RecordedRequest], *, block_size: int, chunk_size: int | None = None
    ) -> None:
        self.block_size = block_size
        self._per_chunk = max(1, (chunk_size or block_size) // block_size)
        self._blocks = {name: hashes for name, request in requests.items() if (hashes := request.hashes)}
        self._keys: dict[str, dict[int, str]] = {}
        self._hashes: dict[str, list[bytes]] = {}
        for name, request in requests.items():
            for event in request.events:
                self._note_keys(event, name)
        self._complete_keys()
        self.known = bool(self._keys or self._blocks)
        self._guessed = {} if self.known else _guessed(requests)

    def tokens(self, request: str, first: int, end: int) -> list[int]:
        """The tokens of a request from number `first` to before `end`."""
        begin = first // self.block_size
        tokens: list[int] = []
        for block in range(begin, -(-end // self.block_size)):
            rng = random.Random(self._content(request, block))
            tokens += rng.choices(TOKENS, k=self.block_size)
        return tokens[first - begin * self.block_size : end - begin * self.block_size]

    def block_hashes(self, request: str, first: int, end: int) -> list[bytes]:
        """Hashes of the blocks from number `first` to before `end`, each for the whole prefix up to its end."""
        held = self._hashes.setdefault(request, [])
        while len(held) < end:
            made_up = hashlib.sha256(self._content(request, len(held)).encode()).digest()
            held.append(self._recorded_hash(request, len(held)) or made_up)
        return held[first:end]

    def shows(self, request: str, end: int) -> bool:
        """Whether it is recorded which requests share the tokens of this one up to before `end`."""
        keys = self._keys.get(request, {})
        chunks = range(end // (self._per_chunk * self.block_size))
        return end // self.block_size <= len(self._blocks.get(request, ())) or all(chunk in keys for chunk in chunks)

    def _recorded_hash(self, request: str, block: int) -> bytes | None:
        chunk, within = divmod(block, self._per_chunk)
        # A kvtrail that recorded less of a block's hash has more of it in the key of the chunk that the block ends.
        key = self._keys.get(request, {}).get(chunk) if within == self._per_chunk - 1 else None
        if key is None and block < len(blocks := self._blocks.get(request, ())):
            key = blocks[block]
        if key is None:
            return None
        try:
            return bytes.fromhex(key)
        except ValueError:  # a connector may name its chunks as it likes
            return key.encode()

    def _content(self, request: str, block: int) -> str:
        """A name for a block's tokens and for the prefix that they end: no two prefixes have the same name."""
        if block < len(blocks := self._blocks.get(request, ())):
            return blocks[block]
        chunk, within = divmod(block, self._per_chunk)
        if (key := self._keys.get(request, {}).get(chunk)) is not None:
            return f"{key}/{within}"
        begin = block * self.block_size
        for seed, count in self._guessed.get(request, ()):
            if 0 <= begin <= count - self.block_size:
                return f"{seed}/{begin}"
            begin -= count
        return f"{request}/{block}"

    def _note_keys(self, event: Event, request: str) -> None:
        if not isinstance(event, Lookup | LoadPlan | StorePlan) or not event.chunk_keys:
            return
        start = 0 if isinstance(event, Lookup) else event.start
        if start is not None:
            first = start // (self._per_chunk * self.block_size)
            self._keys.setdefault(request, {}).update(enumerate(event.chunk_keys, start=first))

    def _complete_keys(self) -> None:
        """A key stands for a whole prefix, so the key before it in one request comes before it in every request."""
        before: dict[str, str] = {}
        for keys in self._keys.values():
            before.update((key, keys[chunk - 1]) for chunk, key in keys.items() if chunk - 1 in keys)
        for keys in self._keys.values():
            for chunk in range(max(keys), 0, -1):
                if chunk - 1 not in keys and (key := before.get(keys.get(chunk, ""))) is not None:
                    keys[chunk - 1] = key


def _guessed(requests: Mapping[str, RecordedRequest]) -> dict[str, tuple[Segment, ...]]:
    """Prompts with the sharing that lengths suggest.

    What vLLM's cache still held was used recently; what only the connector held was not. So the one is assumed to be shared
    with the family of requests that was used last, the other with the family that was unused for longest.
    """
    made: dict[str, tuple[Segment, ...]] = {}
    latest: dict[str, str] = {}
    """The latest request of each family, by the family's first request; the family that was used last comes last."""
    for name, request in requests.items():
        cached = min(request.cached, request.length)
        able = [family for family, member in latest.items() if cached and requests[member].length >= cached]
        family = (able[-1] if request.cached_by_vllm else able[0]) if able else name
        shared = _first(made[latest.pop(family)], cached) if able else ()
        made[name] = (*shared, *_rest(name, request.length - sum(count for _, count in shared)))
        latest[family] = name
    return made


def _first(prompt: Sequence[Segment], tokens: int) -> tuple[Segment, ...]:
    beginning: list[Segment] = []
    for seed, length in prompt:
        if tokens > 0:
            beginning.append((seed, min(length, tokens)))
            tokens -= length
    return tuple(beginning)


def _rest(name: str, tokens: int) -> list[Segment]:
    return [(f"{name}/rest", tokens)] if tokens > 0 else []
