"""Wrong answers to lookups."""

from __future__ import annotations

import hashlib
from typing import Any

from faults.fault import Answer, Fault, ReportingProbe


class EndlessDeferral(Fault):
    """LMCache #1960: a hit is answered with 'ask me later', and no later answer is another."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        return (None if returned else returned), is_async


class FailedCall(Fault):
    """vLLM #56841's kind: a request is missing in a table of the connector's own."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        if returned:
            raise KeyError(request.request_id)
        return returned, is_async


class KeyCollision(Fault):
    """vLLM #44250: a chunk's key is made of the tokens alone, without adapter and salt."""

    def prepare(self) -> None:
        if hasattr(self, "_scheduler"):  # on the scheduler's side
            self._scheduler._keys = self._keys_of_tokens  # type: ignore[method-assign]  # that is the fault

    def _keys_of_tokens(self, request: Any) -> list[bytes]:
        tokens, size = list(request.all_token_ids), self.chunk_size
        ends = range(size, len(tokens) + 1, size)
        return [hashlib.blake2b(repr(tokens[:end]).encode(), digest_size=8).digest() for end in ends]


class NoTokenLeft(Fault):
    """A full hit is answered in full, and no token is left to run."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        full = returned and computed + returned == request.num_tokens - 1
        return (returned + 1 if returned and full else returned), is_async


class AllocMismatch(Fault):
    """The allocation looks up once more, from the beginning, and believes that answer."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.get_num_new_matched_tokens(request, num_external_tokens // 2)
        super().update_state_after_alloc(request, blocks, 0)


class AsyncDeclaration(Fault):
    """The load is declared asynchronous although there is nothing to load."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        return returned, not returned


class PhantomHit(Fault):
    """An evicted chunk stays in the index: lookups go on claiming it."""

    kvtrail_probe = ReportingProbe

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        evicted = super().take_evicted()
        if keys := self._scheduler.last_keys():
            evicted.append((keys[0], self.chunk_size, 0, None))
        return evicted


class ResetHit(Fault):
    """vLLM #57727: a reset is answered with yes, and clears nothing."""

    def reset_cache(self) -> bool:
        return True
