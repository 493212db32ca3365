"""Checksums of KV blocks that one engine hands over to another: they travel with the hand-off, in its `kv_transfer_params`.

The engine that prefills adds them to what it returns for the router. The engine that decodes takes them out before its
connector sees them, and compares what it has loaded: a read of blocks that are another request's by then succeeds, so that
nothing else shows it in time.
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
"""Under which they stand in `kv_transfer_params`."""
MAX_CHECKSUMS = 1024
"""Of more blocks, every second or third or fourth has one: they take less than 3 KB, however long a prompt is."""
_ON_WIRE = np.dtype(">u2")


class HandedOver(NamedTuple):
    """What an engine says of the KV that it hands over.

    Attributes:
        tokens: of how many it is, from the prompt's start.
        prompt: a digest of the ids of the first of them, or "".
        of_prompt: of how many.
        layout: how the bytes of a block lie there, or "".
        checksums: 16 bits of a block, by its number in the request.
    """

    tokens: int
    prompt: str
    of_prompt: int
    layout: str
    checksums: Mapping[int, int]

    def as_dict(self) -> dict[str, Any]:
        """As it travels: JSON-ready. Of blocks that have a checksum, `every` is the distance from one to the next."""
        last, first = max(self.checksums, default=0), min(self.checksums, default=0)
        every = (last - first) // (len(self.checksums) - 1) if len(self.checksums) > 1 else 1
        packed = b64encode(np.array([*self.checksums.values()], dtype=_ON_WIRE).tobytes()).decode()
        return {
            "tokens": self.tokens, "prompt": self.prompt, "of_prompt": self.of_prompt, "layout": self.layout,
            "last": last, "every": every, "checksums": packed,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, given: Any) -> HandedOver:
        """What `as_dict` gave.

        Raises:
            Exception: of what is anything else.
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
        layout: how the bytes of a block lie there.
    """

    def __init__(self, fingerprints: BlockFingerprints) -> None:
        self._fingerprints = fingerprints
        self.layout = fingerprints.layout
        self._stream = fingerprints.side_stream()

    def of(self, numbers: Sequence[int], blocks: Sequence[int]) -> tuple[int, ...]:
        """Those of these blocks, by their numbers in their request. On a GPU that waits for nothing that is queued: nobody
        writes to them any more, or yet."""
        with nullcontext() if self._stream is None else self._stream:
            contents = self._fingerprints.values([self._fingerprints.read(blocks, numbers)])
        reported = [each >> UNREPORTED_BITS for each in contents]
        return tuple((each ^ (each >> 48)) * MIX >> 48 & 0xFFFF for each in reported)


_by_engine: WeakValueDictionary[str, BlockChecksums] = WeakValueDictionary()


def enter(engine_id: str, checksums: BlockChecksums) -> None:
    """From now on they can be read in this process, of the only worker of this engine."""
    _by_engine[engine_id] = checksums


def of_engine(engine_id: str) -> BlockChecksums | None:
    """Those of the only worker of this engine; None if it does not run in this process."""
    return _by_engine.get(engine_id)


def chosen(blocks: int) -> range:
    """The numbers of the blocks that have a checksum, of `blocks` in all: the last one always, since vLLM gives away the end
    of a request first."""
    every = -(-blocks // MAX_CHECKSUMS) or 1
    return range((blocks - 1) % every, blocks, every)
