"""Faults of connectors that lock, count, prefetch or spread over ranks, which the OffloadConnector does not: they tell what
such a connector's books would show, through the signs that its probe reads."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.faults.plans import BLOCK_SIZE, Planner
from kvtrail.connector.known.probe import Sign
from kvtrail.tracer.model.semconv import Kind


class _Telling:
    """Hears of lookups and ends, and tells signs of them."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self.tells_more = True
        self._signs: list[Sign] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(  # type: ignore[misc]
            request, num_computed_tokens
        )
        if self.last_matched:  # type: ignore[attr-defined]  # the OffloadConnector's
            self.hit(request, num_computed_tokens, self.last_matched)  # type: ignore[attr-defined]
        return answer

    def hit(self, request: Any, computed: int, matched: int) -> None:
        """A lookup has matched something."""

    def take_signs(self) -> list[Sign]:
        signs, self._signs = self._signs, []
        return signs


class ShortLoad(Planner, _Telling):
    """LMCache #1770: a load brings less than was promised, and no error is reported.

    https://github.com/LMCache/LMCache/issues/1770.
    """

    def spoil(self, plan: Any, output: Any) -> None:
        for copy in plan.loads[:1]:
            values = (copy.start, copy.count - BLOCK_SIZE, len(copy.blocks) - 1, None, copy.count, None)
            self._signs.append(Sign(Kind.LOAD, copy.request_id, values))


class BlockShortage(Planner, _Telling):
    """LMCache, 0.3.10 to 0.5.6: a list of blocks that has some twice, and so too few for its tokens."""

    def spoil(self, plan: Any, output: Any) -> None:
        for copy in plan.stores[:1]:
            values = (copy.start, copy.count, len(copy.blocks) - 1, None, None, None)
            self._signs.append(Sign(Kind.STORE, copy.request_id, values))


class RankDisagreement(_Telling):
    """LMCache #1467: a rank has lost a chunk, and the others' answer is taken.

    https://github.com/LMCache/LMCache/issues/1467.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        poorest = matched - self.chunk_size  # type: ignore[attr-defined]
        self._signs.append(Sign(Kind.RANK_LOOKUP, request.request_id, (request.num_tokens, poorest)))


class WastedPrefetch(_Telling):
    """LMCache #3490: the prefetch takes the whole hit, computed or not.

    https://github.com/LMCache/LMCache/issues/3490.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        self._signs.append(Sign(Kind.PREFETCH, request.request_id, (0, matched)))


class LockLeak(_Telling):
    """LMCache #1075: every lookup locks what it finds, and nothing unlocks it.

    https://github.com/LMCache/LMCache/pull/1075.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        self._signs.append(Sign(Kind.LOCK, request.request_id, (matched // self.chunk_size,)))  # type: ignore[attr-defined]


class DoubleFree(_Telling):
    """LMCache #3381: a lookup's pin is given back twice.

    https://github.com/LMCache/LMCache/issues/3381.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        key = self.last_keys()[0]  # type: ignore[attr-defined]
        self._signs += [Sign(Kind.REFCOUNT, request.request_id, (key, 1, pins)) for pins in (1, 0, -1)]


class Statistics:
    """LMCache #2912: the external tokens are of this admission, the cached ones of another.

    https://github.com/LMCache/LMCache/issues/2912.
    """

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(  # type: ignore[misc]
            request, num_computed_tokens
        )
        self._asked = request
        return answer

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        plan = super().build_connector_meta(scheduler_output)  # type: ignore[misc]
        if scheduler_output.scheduled_new_reqs and (stats := self._asked.prefill_stats) is not None:
            stats.num_cached_tokens, stats.num_external_cached_tokens = 0, 32
        return plan


class KeyMismatch(_Telling):
    """LMCache #2511: a chunk's key depends on the process that makes it.

    https://github.com/LMCache/LMCache/issues/2511.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        key = self.last_keys()[0]  # type: ignore[attr-defined]
        self._signs.append(Sign(Kind.KEY, None, (f"{key}-{request.request_id}", None, key)))


class IndexDrift(_Telling):
    """llm-d #663: an index loses announced blocks whose parent it does not know.

    https://github.com/llm-d/llm-d-kv-cache/pull/663.
    """

    def hit(self, request: Any, computed: int, matched: int) -> None:
        self._signs.append(Sign(Kind.INDEX, None, (matched, matched - 1, 0)))


class LateRead(_Telling):
    """aws-do-eks #84: a request's blocks are read after their lease.

    https://github.com/aws-samples/aws-do-eks/pull/84.
    """

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        for kind, values in ((Kind.FREE, (len(block_ids[0]), True)), (Kind.READ, (len(block_ids[0]),))):
            self._signs.append(Sign(kind, request.request_id, values))
        return super().request_finished_all_groups(request, block_ids)  # type: ignore[misc, no-any-return]
