"""Faults of connectors that count, prefetch or spread over ranks, which the OffloadConnector does not: it reports what
such a connector would, as events for its probe."""

from __future__ import annotations

from typing import Any

from faults.fault import BLOCK_SIZE, Answer, Fault, ReportingProbe
from kvtrail.connector.known.probe import ProbeEvent
from kvtrail.tracer.events.semconv import Kind


class _Reporting(Fault):
    """A fault that shows in events of the connector itself."""

    kvtrail_probe = ReportingProbe

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        if self.last_matched:
            self.hit(request, self.last_matched)
        return returned, is_async

    def hit(self, request: Any, matched: int) -> None:
        """A lookup has matched something."""


class ShortLoad(_Reporting):
    """LMCache #1770: a load brings less than was promised, and no error is reported."""

    rule = "incomplete-load"

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.loads[:1]:
            short = {
                "count": max(0, copy.count - BLOCK_SIZE),
                "blocks_count": len(copy.blocks) - 1,
                "expected": copy.count,
            }
            self.probe_events.append(ProbeEvent.of(Kind.LOAD, copy.request_id, start=copy.start, **short))


class BlockShortage(_Reporting):
    """LMCache, 0.3.10 to 0.5.6: a list of blocks that has some twice, and so too few for its tokens."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.stores[:1]:
            values = {"start": copy.start, "count": copy.count, "blocks_count": len(copy.blocks) - 1}
            self.probe_events.append(ProbeEvent.of(Kind.STORE, copy.request_id, **values))


class RankDisagreement(_Reporting):
    """LMCache #1467: a rank has lost a chunk, and the others' answer is taken."""

    rule = "partial-hit"

    def hit(self, request: Any, matched: int) -> None:
        poorest = matched - self.chunk_size
        self.probe_events.append(
            ProbeEvent.of(Kind.RANK_LOOKUP, request.request_id, total=request.num_tokens, matched=poorest)
        )


class JointBoundary(_Reporting):
    """vLLM #50359: the smallest of the groups' longest matches is answered, though a group has nothing that ends there."""

    rule = "partial-hit"

    def hit(self, request: Any, matched: int) -> None:
        for group, ends in enumerate(((matched - self.chunk_size, matched), (matched - self.chunk_size,))):
            values = {"total": request.num_tokens, "matched": matched, "group": group, "boundaries": ends}
            self.probe_events.append(ProbeEvent.of(Kind.RANK_LOOKUP, request.request_id, **values))


class EvictedStore(_Reporting):
    """LMCache #5263: the lock of a chunk that is being written expires, and the chunk is evicted."""

    rule = "evicted-in-use"

    _number = 10**6

    def alter_plan(self, plan: Any, output: Any) -> None:
        for copy in plan.stores:
            self._number += 1
            planned = {"start": copy.start, "count": copy.count, "chunk_keys": (copy.key,), "transfer_id": self._number}
            self.probe_events += [
                ProbeEvent.of(Kind.STORE_PLAN, copy.request_id, **planned),
                ProbeEvent.of(Kind.EVICT, None, chunk_key=copy.key, count=copy.count),
                ProbeEvent.of(Kind.TRANSFER_END, copy.request_id, transfer_id=self._number, failed=False),
            ]
        plan.stores.clear()


class RefetchedChunk(_Reporting):
    """vLLM #49902: what is fetched for one waiting request is pushed out by a fetch for another."""

    rule = "evicted-in-use"

    def hit(self, request: Any, matched: int) -> None:
        keys = self._scheduler.last_keys()
        fetch = ProbeEvent.of(Kind.PREFETCH, request.request_id, start=0, count=matched, chunk_keys=keys)
        evicted = ProbeEvent.of(Kind.EVICT, None, chunk_key=keys[0], count=self.chunk_size, pool_tier="near")
        self.probe_events += [fetch, evicted, fetch]


class DoubleFree(_Reporting):
    """LMCache #3381: a lookup's pin is given back twice."""

    def hit(self, request: Any, matched: int) -> None:
        key = self._scheduler.last_keys()[0]
        self.probe_events += [
            ProbeEvent.of(Kind.REFCOUNT, request.request_id, chunk_key=key, refs=1, pins=pins) for pins in (1, 0, -1)
        ]


class StatsMismatch(Fault):
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
        key = self._scheduler.last_keys()[0]
        self.probe_events.append(ProbeEvent(Kind.KEY, None, (f"{key}-{request.request_id}", None, key)))


class LateRead(_Reporting):
    """aws-do-eks #84: a request's blocks are read after their lease."""

    rule = "stale-handoff"

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        for kind, values in ((Kind.FREE, (len(block_ids[0]), True)), (Kind.READ, (len(block_ids[0]), None, None))):
            self.probe_events.append(ProbeEvent(kind, request.request_id, values))
        return super().request_finished_all_groups(request, block_ids)
