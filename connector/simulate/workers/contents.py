"""The KV caches of one worker, in memory, and what they should hold, bit by bit.

The made-up model computes a token's KV from a number for its prefix, mixed with secret bits for each place in the KV. So the
KV of two tokens is equal only if they have the same prefix and belong to the same layer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

UNWRITTEN, FAILED, UNKNOWN = -1, -2, -3
"""Numbers of no prefix: contents before a load; contents of a failed load, or computed from one; unknown contents."""
_ONE = np.int32(1 << 24)
_FREE_BITS = np.int32(0x7E7FFFFF)
"""A number's bits lie among these, and `_ONE` is set: a float that is not 0, tiny or infinite, so that no copy changes it."""
_OF_NO_PREFIX = {0: 0, UNWRITTEN: -1082130432, FAILED: -1073741824}
"""The bits of 0.0, -1.0 and -2.0."""


class Prefixes:
    """A number for each prefix of any request: equal where tokens, salt and adapter are."""

    def __init__(self) -> None:
        self._next: dict[tuple[Any, Any], int] = {}
        self._known: dict[str, tuple[Any, array[int]]] = {}
        """By request id: vLLM's request, and the numbers of its prefixes."""
        self._first: list[tuple[str, int]] = []
        """By number: the first request with the prefix, and the position of the prefix's last token."""

    def of(self, request: Any, drafts: Sequence[int] = ()) -> Any:
        """The numbers of a request's prefixes, one for each of its tokens and then for each of these draft tokens, as an
        array of int32."""
        known, numbers = self._known.get(request.request_id, (None, array("i")))
        if known is not request:
            numbers = array("i")
            self._known[request.request_id] = request, numbers
        self._extend(numbers, request, request.all_token_ids[len(numbers) :])
        if drafts:
            numbers = numbers[:]
            self._extend(numbers, request, drafts)
        return np.array(numbers)

    def _extend(self, numbers: array[int], request: Any, tokens: Sequence[int]) -> None:
        adapter = None if request.lora_request is None else request.lora_request.lora_name
        last: Any = numbers[-1] if numbers else (request.cache_salt, adapter)
        for token in tokens:
            last = self._next.setdefault((last, token), len(self._next))
            if last == len(self._first):
                self._first.append((request.request_id, len(numbers)))
            numbers.append(last)

    def name(self, number: int) -> str:
        """A prefix in words: a token of the first request that had it."""
        request_id, at = self._first[number]
        return f"token {at} of {request_id}"

    def __len__(self) -> int:
        return len(self._first)


_SEEDS = count()


class Shared:
    """What engines of one model share: the numbers of prefixes, and the seed of the model's secrets. Another model has other
    secrets, so that memory which was never written cannot hold valid KV of an earlier model."""

    def __init__(self) -> None:
        self.prefixes, self.seed = Prefixes(), next(_SEEDS)


class Secret:
    """The bits that distinguish the KV of some heads of one layer from that of all others: one word for each place in a
    token's KV, or in the state after a token."""

    def __init__(self, heads: Sequence[str], places: tuple[int, ...], *, is_state: bool = False) -> None:
        """`heads` are their names, and `places` is the shape of a token's KV in one head."""
        self.subject = "the state after" if is_state else "the KV of"
        drawn = [np.random.default_rng([*name.encode()]).integers(0, 1 << 31, places, np.int32) for name in heads]
        self._bits = np.stack(drawn) & _FREE_BITS

    def words(self, numbers: Any) -> Any:
        """The KV of tokens: for each number, the words of one token."""
        words = _spread(numbers).reshape(-1, *[1] * self._bits.ndim) ^ self._bits
        for number in (UNWRITTEN, FAILED):
            words[numbers == number] = _OF_NO_PREFIX[number]
        return words

    def number(self, words: Any) -> int | None:
        """The number of a token's KV; None if it is not KV of this layer."""
        spread = (words ^ self._bits).ravel()
        first = spread[0]
        if (spread != first).any() or first & _ONE != _ONE or first & ~(_FREE_BITS | _ONE):
            return None
        return int((first & 0x7FFFFF) | (first >> 25) << 23)


def _spread(numbers: Any) -> Any:
    """Spread numbers of 29 bits over the free bits of words."""
    return (numbers & np.int32(0x7FFFFF)) | (numbers >> 23) << 25 | _ONE


class LayerCache:
    """The KV cache of one layer on one tensor-parallel rank.

    Attributes:
        layer, rank, group: what it belongs to; a rank has a part of the heads.
        is_state: whether a block holds one recurrent state, in one slot, instead of the KV of its tokens.
        tensor: the cache, as connectors see it: its first dimension counts blocks, the third one the slots of a block.
        secret: of this layer's KV.
    """

    def __init__(
        self, layer: str, rank: int, group: int, shape: tuple[int, ...], seed: int, *, is_state: bool = False
    ) -> None:
        import torch

        self.layer, self.rank, self.group, self.is_state = layer, rank, group, is_state
        heads = range(rank * shape[1], (rank + 1) * shape[1])
        self.secret = Secret([f"{seed}/{head}/{layer}" for head in heads], shape[3:], is_state=is_state)
        self.tensor: Any = torch.full(shape, -1.0)
        self._held = self.tensor.numpy().view(np.int32)
        self._should = self._held.copy()
        self._expected = np.zeros(shape[::2], bool)
        """The slots that the connector should write, and that the model has not written since."""

    def write(self, blocks: Any, slots: Any, numbers: Any) -> None:
        """The model writes the KV of these tokens."""
        words = self.secret.words(numbers)
        self._held[blocks, :, slots] = words
        self._should[blocks, :, slots] = words
        self._expected[blocks, slots] = False

    def copy(self, source: int, target: int) -> None:
        """vLLM copies a block."""
        for cache in (self._held, self._should, self._expected):
            cache[target] = cache[source]

    def expect(self, blocks: Any, slots: Any, numbers: Any) -> None:
        """The connector should write the KV of these tokens; until then their slots hold none."""
        self._held[blocks, :, slots] = self.secret.words(np.full_like(numbers, UNWRITTEN))
        self._should[blocks, :, slots] = self.secret.words(numbers)
        self._expected[blocks, slots] = True

    def wrong(self) -> Any:
        """For each slot of each block, whether it differs from what it should hold."""
        wrong = np.zeros((len(self._held), self.slots), bool)
        held, should = (cache.reshape(len(wrong), -1).view(np.uint64) for cache in (self._held, self._should))
        if not np.array_equal(held, should):
            blocks = (held != should).any(axis=1)
            wrong[blocks] = (self._held[blocks] != self._should[blocks]).any(axis=(1, 3))
        return wrong

    def is_written_to(self, wrong: Any) -> bool:
        """Whether anybody but the model has written to wrong slots, or to those that the connector should write."""
        return bool((self._held.swapaxes(1, 2)[wrong | self._expected] != _OF_NO_PREFIX[UNWRITTEN]).any())

    def words(self, block: int, slot: int) -> Any:
        """The KV of one token, as it is."""
        return self._held[block, :, slot]

    @property
    def slots(self) -> int:
        """The number of slots of a block: one for each of its tokens, or one for a state."""
        return int(self._held.shape[2])

    def accept(self, blocks: Any) -> None:
        """Take the contents of these blocks as what they should hold."""
        self._should[blocks] = self._held[blocks]


def holds(words: Any, expected: Any, layer: str, secrets: Mapping[str, Secret], prefixes: Prefixes) -> str:
    """Describe the words of one token's KV: which prefix and layer they belong to, if they were ever computed."""
    for value, text in (
        (_OF_NO_PREFIX[0], "zeros"),
        (_OF_NO_PREFIX[UNWRITTEN], "nothing, since nobody had written there by then"),
        (_OF_NO_PREFIX[FAILED], "what was computed of a load that had failed"),
    ):
        if (words == value).all():
            return text
    for name, secret in {layer: secrets[layer], **secrets}.items():
        number = secret.number(words)
        if number is not None and number < len(prefixes):
            owner = f"{secret.subject} {prefixes.name(number)}"
            return owner if name == layer else f"{owner} in {name}"
    differ = int((words != expected).sum())
    if 2 * differ < words.size:
        return f"its own KV, but for {differ} of its {words.size} numbers"
    return "nothing that was ever computed"
