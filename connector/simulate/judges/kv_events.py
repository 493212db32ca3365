"""Judges the KV cache events of a connector, which routers rely on: blocks that they report as stored must have been
computed, and lookups must not find blocks that they report as removed.

vLLM's scheduler takes them after each step (`take_events`) and publishes them with its own; routers build an index of block
hashes from them (vLLM 0.32, `vllm/distributed/kv_events.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvtrail.tracer.model.words import some

Place = tuple[str | None, int | None]
"""A medium, and a KV cache group."""
Note = Callable[[str, str], None]
"""Takes a name of the fault, equal for the same fault, and a text with this run's numbers."""


class KVEvents:
    """The index that a router builds from the events of one connector.

    Attributes:
        stored, removed: how many blocks were reported as stored, and as removed.
        found: lookups that found tokens, once events had named blocks of vLLM.
    """

    def __init__(self, note: Note, hash_block_size: int) -> None:
        """`hash_block_size`: tokens of a block that has a hash, of a request's `block_hashes`."""
        self._note, self._size = note, hash_block_size
        self._computed: set[Any] = set()
        """The hashes of all blocks that a request has held."""
        self._stored: dict[Any, Counter[Place]] = {}
        """By a block's hash and place, how many reports say that it is stored and were not followed by one that says that it
        is removed. Chunks that share blocks report each of them again (vLLM 0.32,
        `kv_connector/v1/offloading/events.py`)."""
        self._removed: set[Any] = set()
        self._are_of_vllm = False
        """Whether the hashes are vLLM's. A connector may use its own, which identify no block here."""
        self.stored = self.removed = self.found = 0

    def computed(self, request: Any, begin: int, end: int) -> None:
        """Enter the tokens [begin, end) of a request as computed."""
        self._computed.update(self._hashes(request, begin // self._size, end // self._size))

    def take(self, events: Iterable[Any], step: int) -> None:
        """Judge the events of a step, in order. vLLM publishes them as one batch, so a block that one of them reports as
        stored and a later one as removed, because the step's load failed, misleads no router."""
        from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

        batch_stored = []
        for event in events:
            match event:
                case BlockStored():
                    self._enter_stored(event)
                    batch_stored.append(event)
                case BlockRemoved():
                    self._take_removed(event, step)
                case AllBlocksCleared():
                    self.clear()
        for event in batch_stored:
            self._judge_stored(event, step)

    def clear(self) -> None:
        """Forget all blocks: the cache was reset, and vLLM itself informs the router."""
        self._stored.clear()
        self._removed.clear()

    def looked_up(self, request: Any, computed: int, returned: int, step: int) -> None:
        """Judge a lookup that found `returned` tokens after `computed` ones."""
        hashes = self._hashes(request, computed // self._size, -(-(computed + returned) // self._size))
        if not self._are_of_vllm or not hashes:
            return
        self.found += 1
        found = f"In step {step} a lookup of {request.request_id} found tokens {computed} to {computed + returned}."
        if gone := [each for each in hashes if each in self._removed]:
            self._note(
                "a block that events have removed is found",
                f"{found} Events have reported {len(gone)} of these {len(hashes)} blocks as removed, and not as stored since:"
                " a router sends such requests elsewhere.",
            )
        elif not any(each in self._stored for each in hashes):
            self._note(
                "a block that no event has stored is found",
                f"{found} No event has reported any of these {len(hashes)} blocks as stored: no router knows of them.",
            )

    def listed(self, request: Any) -> int:
        """The number of a request's tokens that a router considers stored: up to the last block that was reported as stored,
        if no block before it was reported as removed. A connector may report only the last block of each of its chunks."""
        end = 0
        for number, each in enumerate(self._hashes(request, 0, len(request.block_hashes)), 1):
            if each in self._stored:
                end = number * self._size
            elif each in self._removed:
                break
        return end

    def _enter_stored(self, event: Any) -> None:
        self.stored += len(event.block_hashes)
        self._are_of_vllm = self._are_of_vllm or any(each in self._computed for each in event.block_hashes)
        for each in event.block_hashes:
            self._stored.setdefault(each, Counter())[_place(event)] += 1
            self._removed.discard(each)

    def _judge_stored(self, event: Any, step: int) -> None:
        unknown = [
            each
            for each in event.block_hashes
            if each not in self._computed and _place(event) in self._stored.get(each, ())
        ]
        if self._are_of_vllm and unknown:
            self._note(
                "an event stores what nobody has computed",
                f"After step {step} an event reported {some(len(event.block_hashes), 'block')} as stored{_where(event)}. No"
                f" request has computed {len(unknown)} of them.",
            )

    def _take_removed(self, event: Any, step: int) -> None:
        self.removed += len(event.block_hashes)
        strange = [each for each in event.block_hashes if _place(event) not in self._stored.get(each, ())]
        if strange:
            self._note(
                "an event removes what none has stored",
                f"After step {step} an event reported {some(len(event.block_hashes), 'block')} as removed{_where(event)}. No"
                f" event has reported {len(strange)} of them as stored there.",
            )
        for each in event.block_hashes:
            left = self._stored.pop(each, Counter()) - Counter({_place(event): 1})
            if left:
                self._stored[each] = left
            else:
                self._removed.add(each)

    def _hashes(self, request: Any, first: int, last: int) -> Sequence[Any]:
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        return [maybe_convert_block_hash(each) for each in request.block_hashes[first:last]]


def _place(event: Any) -> Place:
    return event.medium, getattr(event, "group_idx", None)  # older versions of vLLM lack it


def _where(event: Any) -> str:
    place, group = _place(event)
    medium = f" in {place}" if place else ""
    return medium if group is None else f"{medium}, of KV cache group {group}"
