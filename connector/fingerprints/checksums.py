"""Checksums of KV blocks that one engine hands over to another, in the `kv_transfer_params` of the hand-off.

The prefill engine adds them to the parameters that it returns for the router. The decode engine removes them before its
connector sees them, and compares the loaded blocks with them. If the blocks belong to another request by then, the read still
succeeds, and no other check notices that in time.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from kvtrail.connector.fingerprints.fingerprint import MIX, UNREPORTED_BITS

if TYPE_CHECKING:
    from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints

KEY = "kvtrail"
"""Their key in `kv_transfer_params`."""
MAX_CHECKSUMS = 1024
"""Maximum number of checksums, which take less than 3 KB. If there are more blocks, only every second, third or fourth block
has a checksum."""
_ON_WIRE = np.dtype(">u2")


class HandedOver(NamedTuple):
    """An engine's description of the KV that it hands over.

    Attributes:
        tokens: number of tokens, from the prompt's start.
        prompt: a digest of the ids of the first of them, or "".
        of_prompt: number of tokens in the digest.
        layout: the memory layout of a block in this engine, or "".
        checksums: 16 bits for each block, by the block's number in the request.
    """

    tokens: int
    prompt: str
    of_prompt: int
    layout: str
    checksums: Mapping[int, int]

    def as_dict(self) -> dict[str, Any]:
        """The form in `kv_transfer_params`, ready for JSON. `every` is the distance between two blocks with a checksum."""
        last, first = max(self.checksums, default=0), min(self.checksums, default=0)
        every = (last - first) // (len(self.checksums) - 1) if len(self.checksums) > 1 else 1
        packed = b64encode(np.array([*self.checksums.values()], dtype=_ON_WIRE).tobytes()).decode()
        return {
            "tokens": self.tokens, "prompt": self.prompt, "of_prompt": self.of_prompt, "layout": self.layout,
            "last": last, "every": every, "checksums": packed,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, given: Any) -> HandedOver:
        """The description from the result of `as_dict`.

        Raises:
            Exception: `given` has another form.
        """
        checksums = np.frombuffer(b64decode(given["checksums"], validate=True), dtype=_ON_WIRE)[-MAX_CHECKSUMS:]
        last, every = int(given["last"]), max(1, int(given["every"]))
        numbers = range(last - every * (len(checksums) - 1), last + 1, every)
        by_number = dict(zip(numbers, checksums.tolist(), strict=True))
        prompt, of_prompt = str(given["prompt"]), int(given["of_prompt"])
        return cls(int(given["tokens"]), prompt, of_prompt, str(given["layout"]), by_number)


class BlockChecksums:
    """Reads checksums from the KV caches of one rank.

    Attributes:
        layout: the memory layout of a block.
    """

    def __init__(self, fingerprints: BlockFingerprints) -> None:
        self._fingerprints = fingerprints
        self.layout = fingerprints.layout
        self._stream = fingerprints.side_stream()

    def of(self, numbers: Sequence[int], blocks: Sequence[int]) -> tuple[int, ...]:
        """The checksums of these blocks, by their numbers in their request. On a GPU this does not wait for queued work: no
        queued operation writes to them."""
        with nullcontext() if self._stream is None else self._stream:
            contents = self._fingerprints.values([self._fingerprints.read(blocks, numbers)])
        reported = [each >> UNREPORTED_BITS for each in contents]
        return tuple((each ^ (each >> 48)) * MIX >> 48 & 0xFFFF for each in reported)


BY_ENGINE: WeakValueDictionary[str, BlockChecksums] = WeakValueDictionary()
"""The checksums of each engine with a single worker that runs in this process."""


def chosen(blocks: int) -> range:
    """The numbers of the blocks with a checksum, out of `blocks`: always including the last one, since vLLM reuses the end of
    a request first."""
    every = -(-blocks // MAX_CHECKSUMS) or 1
    return range((blocks - 1) % every, blocks, every)
