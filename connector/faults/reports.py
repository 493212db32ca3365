"""Faults of connectors that lock, count, prefetch or spread over ranks, which the OffloadConnector does not: it reports what
such a connector would, as events for its probe."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.faults.base import BLOCK_SIZE, Answer, Fault
from kvtrail.connector.known.probe import ProbeEvent
from kvtrail.tracer.events.semconv import Kind


class _Reporting(Fault):
    """A fault that shows in events of the connector itself."""

    reports_more = True

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        if self.last_matched:
            self.hit(request, self.last_matched)
        return returned, is_async

    def hit(self, request: Any, matched: int) -> None:
        """A lookup has matched something."""


class ShortLoad(_Reporting):
    """LMCache #1770: a load brings less than was promised, and no error is reported."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.loads[:1]:
            values = (copy.start, copy.count - BLOCK_SIZE, len(copy.blocks) - 1, None, copy.count, None)
            self.probe_events.append(ProbeEvent(Kind.LOAD, copy.request_id, values))


class BlockShortage(_Reporting):
    """LMCache, 0.3.10 to 0.5.6: a list of blocks that has some twice, and so too few for its tokens."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.stores[:1]:
            values = (copy.start, copy.count, len(copy.blocks) - 1, None, None, None)
            self.probe_events.append(ProbeEvent(Kind.STORE, copy.request_id, values))


class RankDisagreement(_Reporting):
    """LMCache #1467: a rank has lost a chunk, and the others' answer is taken."""

    def hit(self, request: Any, matched: int) -> None:
        poorest = matched - self.chunk_size
        self.probe_events.append(
            ProbeEvent(Kind.RANK_LOOKUP, request.request_id, (request.num_tokens, poorest, None, None))
        )


class JointBoundary(_Reporting):
    """vLLM #50359: the smallest of the groups' longest matches is answered, though a group has nothing that ends there."""

    def hit(self, request: Any, matched: int) -> None:
        for group, ends in enumerate(((matched - self.chunk_size, matched), (matched - self.chunk_size,))):
            values = (request.num_tokens, matched, group, ends)
            self.probe_events.append(ProbeEvent(Kind.RANK_LOOKUP, request.request_id, values))


class StalledTier(_Reporting):
    """LMCache #4817: a tier is full, nothing makes room in it, and every store fails."""

    _number = 10**6

    def alter_plan(self, plan: Any, output: Any) -> None:
        full = ProbeEvent(Kind.POOL, None, ("host", 100, 0, 100))
        self.probe_events.append(full)
        for copy in plan.stores:
            self._number += 1
            planned = (copy.start, copy.count, None, None, self._number, None, None, None, None)
            self.probe_events += [
                ProbeEvent(Kind.STORE_PLAN, copy.request_id, planned),
                ProbeEvent(Kind.TRANSFER_END, copy.request_id, (self._number, True, None)),
            ]
        plan.stores.clear()


class EvictedStore(_Reporting):
    """LMCache #5263: the lock of a chunk that is being written expires, and the chunk is evicted."""

    _number = 10**6

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.stores:
            self._number += 1
            planned = (copy.start, copy.count, None, (copy.key,), self._number, None, None, None, None)
            self.probe_events += [
                ProbeEvent(Kind.STORE_PLAN, copy.request_id, planned),
                ProbeEvent(Kind.EVICT, None, (copy.key, copy.count, None, None, None)),
                ProbeEvent(Kind.TRANSFER_END, copy.request_id, (self._number, False, None)),
            ]
        plan.stores.clear()


class RefetchedChunk(_Reporting):
    """vLLM #49902: what is fetched for one waiting request is pushed out by a fetch for another."""

    def hit(self, request: Any, matched: int) -> None:
        keys = self.last_keys()
        fetch = ProbeEvent(Kind.PREFETCH, request.request_id, (0, matched, keys))
        evicted = ProbeEvent(Kind.EVICT, None, (keys[0], self.chunk_size, None, "near", None))
        self.probe_events += [fetch, evicted, fetch]


class WastedPrefetch(_Reporting):
    """LMCache #3490: the prefetch takes the whole hit, computed or not."""

    def hit(self, request: Any, matched: int) -> None:
        self.probe_events.append(ProbeEvent(Kind.PREFETCH, request.request_id, (0, matched, None)))


class LockLeak(_Reporting):
    """LMCache #1075: every lookup locks what it finds, and nothing unlocks it."""

    def hit(self, request: Any, matched: int) -> None:
        self.probe_events.append(ProbeEvent(Kind.LOCK, request.request_id, (matched // self.chunk_size,)))


class DoubleFree(_Reporting):
    """LMCache #3381: a lookup's pin is given back twice."""

    def hit(self, request: Any, matched: int) -> None:
        key = self.last_keys()[0]
        self.probe_events += [ProbeEvent(Kind.REFCOUNT, request.request_id, (key, 1, pins)) for pins in (1, 0, -1)]


class Statistics(Fault):
    """LMCache #2912: the external tokens are of this admission, the cached ones of another."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        self._asked = request
        return returned, is_async

    def alter_plan(self, plan: Any, output: Any) -> None:
        if output.scheduled_new_reqs and (stats := self._asked.prefill_stats) is not None:
            stats.num_cached_tokens, stats.num_external_cached_tokens = 0, 32


class KeyMismatch(_Reporting):
    """LMCache #2511: a chunk's key depends on the process that makes it."""

    def hit(self, request: Any, matched: int) -> None:
        key = self.last_keys()[0]
        self.probe_events.append(ProbeEvent(Kind.KEY, None, (f"{key}-{request.request_id}", None, key)))


class IndexDrift(_Reporting):
    """llm-d #663: an index loses announced blocks whose parent it does not know."""

    def hit(self, request: Any, matched: int) -> None:
        self.probe_events.append(ProbeEvent(Kind.INDEX, None, (matched, matched - 1, 0)))


class LateRead(_Reporting):
    """aws-do-eks #84: a request's blocks are read after their lease."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        for kind, values in ((Kind.FREE, (len(block_ids[0]), True)), (Kind.READ, (len(block_ids[0]),))):
            self.probe_events.append(ProbeEvent(kind, request.request_id, values))
        return super().request_finished_all_groups(request, block_ids)
