"""Wrong copies on a worker: every count is right, and the bytes are not. For the OffloadConnector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from faults.fault import Fault

LATE_STEPS = 3
"""How much later a late store runs."""


class LateLoad(Fault):
    """vLLM #31210's kind: nobody waits for a load, and it writes when the forward pass has read."""

    def prepare(self) -> None:
        self._late: Sequence[Any] = ()

    def load_chunks(self, copies: Sequence[Any]) -> None:
        self._late = copies

    def wait_for_save(self) -> None:
        late, self._late = self._late, ()
        if late:
            super().load_chunks(late)
        super().wait_for_save()


class LayerLeftOut(Fault):
    """LMCache #4463's kind: the last layer is not loaded."""

    def load_chunks(self, copies: Sequence[Any]) -> None:
        memory = self._memory
        left_out = memory._of_group[0].pop()
        super().load_chunks(copies)
        memory._of_group[0].append(left_out)


class ForeignChunk(Fault):
    """vLLM #52234's kind: a load brings the chunk that was stored last, whosever it is."""

    _last_slot: int | None = None

    def store_chunks(self, copies: Sequence[Any]) -> None:
        super().store_chunks(copies)
        self._last_slot = copies[-1].slot

    def load_chunks(self, copies: Sequence[Any]) -> None:
        super().load_chunks([replace(copy, slot=self._last_slot) for copy in copies])


class StrayWrite(Fault):
    """vLLM #56104's kind: a load writes one block too many, into whoever holds that."""

    def load_chunks(self, copies: Sequence[Any]) -> None:
        super().load_chunks(copies)
        last = self._memory._num_blocks - 1
        super().load_chunks([replace(copy, blocks=(min(max(copy.blocks) + 1, last),)) for copy in copies])


class FlippedBit(Fault):
    """A bit of each store flips in host memory, in the last layer."""

    def store_chunks(self, copies: Sequence[Any]) -> None:
        import torch

        super().store_chunks(copies)
        room = torch.as_tensor(self._memory._parts[-1]._slots).view(torch.uint8)
        room[copies[0].slot * self._memory._config.rows[0]].view(-1)[-1] ^= 1


class LateStore(Fault):
    """vLLM #52360's kind: a store runs some steps later, when its blocks may hold another request's KV."""

    def prepare(self) -> None:
        self._waiting: list[tuple[int, Sequence[Any]]] = []
        self._steps = 0

    def store_chunks(self, copies: Sequence[Any]) -> None:
        self._waiting.append((self._steps + LATE_STEPS, copies))

    def wait_for_save(self) -> None:
        super().wait_for_save()
        self._steps += 1
        while self._waiting and self._waiting[0][0] <= self._steps:
            super().store_chunks(self._waiting.pop(0)[1])
