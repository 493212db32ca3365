"""Wrong answers to lookups."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.probe import probe_for


class StaleLookup:
    """LMCache #2158: after the first lookup of an epoch the matched length is remembered and handed out as it is.

    https://github.com/LMCache/LMCache/issues/2158. The first answer subtracts the computed tokens; the remembered one
    does not, so that the second lookup of a request that waits after a preemption promises tokens vLLM already has.
    """

    answered_from_memory = False

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self._remembered: dict[str, tuple[int, int]] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        epoch, remembered = self._remembered.get(request.request_id, (-1, 0))
        self.answered_from_memory = epoch == request.num_preemptions
        if self.answered_from_memory:
            return remembered, False  # the call above kept the connector's books current, as LMCache's were
        matched, _ = probe_for(type(self)).lookup(self, request)
        if matched is None and returned is not None:
            matched = num_computed_tokens + returned
        if matched is not None:
            self._remembered[request.request_id] = (request.num_preemptions, matched)
        return returned, is_async


class OverReport:
    """A hit is padded to the next block, whether or not the store holds it."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        return (returned + 32 if returned else returned), is_async


class FullHit:
    """A full hit is answered in full, and no token is left to run."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        full = returned and num_computed_tokens + returned == request.num_tokens - 1
        return (returned + 1 if full else returned), is_async


class AllocMismatch:
    """The allocation looks up once more, from the beginning, and believes that answer."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.get_num_new_matched_tokens(request, num_external_tokens // 2)  # type: ignore[attr-defined]
        super().update_state_after_alloc(request, blocks, 0)  # type: ignore[misc]


class AsyncDeclaration:
    """The load is declared asynchronous although there is nothing to load."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        return returned, not returned


class PhantomHit:
    """An evicted chunk stays in the index: lookups go on claiming it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self.tells_more = True

    def take_evicted(self) -> list[tuple[str, int, int]]:
        evicted: list[tuple[str, int, int]] = super().take_evicted()  # type: ignore[misc]
        if keys := self.last_keys():  # type: ignore[attr-defined]
            evicted.append((keys[0], self.chunk_size, 0))  # type: ignore[attr-defined]
        return evicted


class ResetHit:
    """vLLM #57727: a reset is answered with yes, and clears nothing.

    https://github.com/vllm-project/vllm/issues/57727.
    """

    def reset_cache(self) -> bool:
        return True
