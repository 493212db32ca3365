"""Bugs of the kinds that connectors' authors write, each planted in the host cache; and a probe, as its author would write
it."""

from __future__ import annotations

import hashlib
from typing import Any

from planted.host_cache import HostCache, Plan, Tracked


class LeaseKeptOnAbort(HostCache):
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.tracked.pop(request.request_id, None)
        return False, None


class HitsSurviveReset(HostCache):
    """The reset forgets what is under way, and keeps the index."""

    def reset_cache(self) -> bool:
        if any(tracked.loading for tracked in self.tracked.values()):
            return False
        for tracked in self.tracked.values():
            tracked.stored = 0
            self.release(tracked)
        return True


class MarkMovedByFailedStore(HostCache):
    """A chunk for which there is no slot counts as stored."""

    def insert(self, key: bytes) -> bool:
        if not super().insert(key):
            self.refused = True
        return True

    def store(self, tracked: Tracked, computed: int, tables: Any) -> None:
        keys = self.keys(tracked.request)
        while tracked.stored + self.chunk <= computed and tracked.stored // self.chunk < len(keys):
            chunk = tracked.stored // self.chunk
            if keys[chunk] in self.index:
                self.index.move_to_end(keys[chunk])
            elif HostCache.insert(self, keys[chunk]):
                (table,) = tables.get_block_ids(tracked.request.request_id)
                self.plan.stores.append(self.copy(tracked.request, chunk, tracked.stored, table))
            tracked.stored += self.chunk


class PinForEachRetry(HostCache):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.track(request).lease = []
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class BlocksKeptForEver(HostCache):
    """The blocks of every request that stored something are kept, and never reported as sent."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        stored = request.request_id in self.tracked and self.tracked[request.request_id].stored > 0
        return super().request_finished(request, block_ids)[0] or stored, None


class StoresOfFailedLoadKept(HostCache):
    """Chunks behind a failed load are computed again, and what was stored of them stays."""

    def drop(self, key: bytes) -> None:
        pass


class PlanSkipsFirstChunk(HostCache):
    """Where vLLM has a part of the prefix, the load begins a chunk too late."""

    def load(self, request: Any, start: int, end: int, table: list[int]) -> None:
        super().load(request, start + self.chunk if start else start, end, table)


class StaleLookup(HostCache):
    """What matched is remembered for the request's life, and handed out again without a look at what vLLM has."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not hasattr(self, "answers"):
            self.answers: dict[str, int] = {}
        new, late = super().get_num_new_matched_tokens(request, num_computed_tokens)
        known = self.answers.setdefault(request.request_id, new or 0)
        return (known, self.late) if known else (new, late)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.answers.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class FullPromptHit(HostCache):
    def matched(self, request: Any) -> int:
        chunks = 0
        for key in self.keys(request):
            if key not in self.index:
                break
            chunks += 1
        return chunks


class AsyncConstant(HostCache):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return super().get_num_new_matched_tokens(request, num_computed_tokens)[0], self.late


class EvictedBeforeLoad(HostCache):
    """A request is looked up once while it waits, and what it matched is not leased meanwhile."""

    def lease(self, tracked: Tracked, keys: list[bytes]) -> None:
        tracked.lease = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self.track(request)
        asked = getattr(tracked, "asked", None)
        if asked is None or asked[0] != (request.num_preemptions, num_computed_tokens):
            asked = (
                (request.num_preemptions, num_computed_tokens),
                super().get_num_new_matched_tokens(request, num_computed_tokens),
            )
            tracked.asked = asked  # type: ignore[attr-defined]
            tracked.end = num_computed_tokens + (asked[1][0] or 0)  # type: ignore[attr-defined]
        return asked[1]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tracked = self.track(request)
        if tracked.loading or not num_external_tokens:
            return
        (table,) = blocks.get_block_ids()
        end: int = tracked.end  # type: ignore[attr-defined]
        for key in self.keys(request)[: end // self.chunk]:
            self.index.setdefault(key, 0)
        self.load(request, end - num_external_tokens, end, table)
        tracked.loading, tracked.stored = True, end
        if self.late:
            self.plan.receives.add(request.request_id)


class KeyWithoutSalt(HostCache):
    """Keys of its own, of the tokens alone."""

    def keys(self, request: Any) -> list[bytes]:
        tokens, digest, keys = list(request.all_token_ids), b"", []
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            digest = hashlib.blake2b(digest + repr(tokens[end - self.chunk : end]).encode(), digest_size=16).digest()
            keys.append(digest)
        return keys


class ReportedTwice(HostCache):
    """What was received is reported once more."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        before: set[str] = getattr(self, "before", set())
        self.before = set(self.received)
        return None, super().get_finished(finished_req_ids)[1] | before  # type: ignore[operator]


class StateOfAnOldRequest(HostCache):
    """What is kept by request id stays after its end, for whoever uses the id next."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if request.request_id in self.tracked:
            self.release(self.tracked[request.request_id])
        return False, None


class ReportedBeforeWritten(HostCache):
    """Needs real copies: a load is reported a step before it is written."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        before = getattr(self, "before_plan", Plan())
        self.before_plan = Plan(list(plan.loads))
        self._connector_metadata = Plan(before.loads, plan.stores, plan.receives)
        super().start_load_kv(forward_context)


class LoadsNothing(HostCache):
    """A first version: its lookups and its reports are right, and no load copies anything."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        self.received |= plan.receives


BUGS = {
    each.__name__: each
    for each in (
        LeaseKeptOnAbort, HitsSurviveReset, MarkMovedByFailedStore, PinForEachRetry, BlocksKeptForEver,
        StoresOfFailedLoadKept, PlanSkipsFirstChunk, StaleLookup, FullPromptHit, AsyncConstant, EvictedBeforeLoad,
        KeyWithoutSalt, ReportedTwice, StateOfAnOldRequest,
    )
}  # fmt: skip
