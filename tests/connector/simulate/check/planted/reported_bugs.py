"""Twenty bugs of public reports, each planted as its report has it: in the documentation's connector, which stores within a
step, or in the tiered store, which stores asynchronously. `benchmarks/planted_bugs.py` says how many a session finds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planted.tiered_store import Entry, Report, State, TieredConnector

sys.path.append(str(Path(__file__).parents[5] / "docs" / "conformance"))

from my_connector import MyConnector, Tracked  # type: ignore[import-not-found]


class CountsTokensTwice(MyConnector):  # type: ignore[misc]
    """A preempted request that is looked up again is answered from the last lookup, whatever vLLM has computed by then.
    https://github.com/LMCache/LMCache/issues/2158"""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        before: Tracked | None = self.tracked.get(request.request_id)
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        tracked: Any = self.tracked[request.request_id]
        if request.num_preemptions and before is not None and (last := getattr(before, "answer", None)):
            answer = last
        tracked.answer = answer
        return answer[0], answer[1]


class OffersTheLastToken(MyConnector):  # type: ignore[misc]
    """A hit may be the whole prompt. https://github.com/vllm-project/vllm/pull/55113"""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if request.num_tokens % self.block_size == 0 and all(key in self.held for key in request.block_hashes):
            new = request.num_tokens - num_computed_tokens
            return new, self.load_async and new > 0
        return answer[0], answer[1]


class LookupsCountAsStores(MyConnector):  # type: ignore[misc]
    """Each lookup of a waiting request adds what it has found to what counts as stored of it.
    https://github.com/LMCache/LMCache/issues/4508"""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        before = getattr(self.tracked.get(request.request_id), "stored", 0)
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        tracked: Any = self.tracked[request.request_id]
        tracked.stored = before + (num_computed_tokens + (answer[0] or 0)) // self.block_size
        return answer[0], answer[1]

    def store(self, tracked: Tracked, blocks: int) -> None:
        if blocks > getattr(tracked, "stored", 0):
            super().store(tracked, blocks)


class StoresBeforeItComputes(MyConnector):  # type: ignore[misc]
    """All blocks of a request with a hash are stored in its first step. https://github.com/LMCache/LMCache/issues/886"""

    def store(self, tracked: Tracked, blocks: int) -> None:
        super().store(tracked, len(tracked.request.block_hashes))


class LoadsWithoutAnAllocation(MyConnector):  # type: ignore[misc]
    """What the lookup found is loaded, also where 0 tokens were allocated for it.
    https://github.com/LMCache/LMCache/pull/4355"""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        tracked: Any = self.tracked[request.request_id]
        tracked.found = answer[0]
        return answer[0], answer[1]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        (table,) = blocks.get_block_ids()
        tracked: Any = self.tracked[request.request_id]
        found, tracked.found = tracked.found, 0
        if len(table) * self.block_size >= tracked.computed + found:
            super().update_state_after_alloc(request, blocks, found)


class DropsBeforeItLoads(MyConnector):  # type: ignore[misc]
    """What is found may be evicted in the step that loads it, and then a part is loaded.
    https://github.com/vllm-project/vllm/pull/42289"""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan: Any = self._get_connector_metadata()
        for key in plan.drops:
            del self.host[key]
        plan.drops = []
        plan.loads = {each: [one for one in copies if one[0] in self.host] for each, copies in plan.loads.items()}
        super().start_load_kv(forward_context, **kwargs)


class ClaimsWhatAnyRequestBegan(MyConnector):  # type: ignore[misc]
    """A prompt whose store has begun is claimed up to its last whole block, whatever is saved of it.
    https://github.com/vllm-project/vllm/pull/53314"""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun: set[tuple[bytes, ...]] = set()

    def store(self, tracked: Tracked, blocks: int) -> None:
        super().store(tracked, blocks)
        self.begun.add(tuple(tracked.request.block_hashes[: tracked.request.num_prompt_tokens // self.block_size]))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        most = (request.num_tokens - 1) // self.block_size
        if answer[0] and tuple(request.block_hashes[: request.num_prompt_tokens // self.block_size]) in self.begun:
            return max(0, most * self.block_size - num_computed_tokens), answer[1]
        return answer[0], answer[1]

    def use(self, keys: list[bytes]) -> None:
        super().use([key for key in keys if key in self.held])

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan: Any = self._get_connector_metadata()
        plan.loads = {each: [one for one in copies if one[0] in self.host] for each, copies in plan.loads.items()}
        super().start_load_kv(forward_context, **kwargs)

    def reset_cache(self) -> bool:
        self.begun.clear()
        return bool(super().reset_cache())


class StoresFromTheLoadOn(MyConnector):  # type: ignore[misc]
    """Of a request that has loaded a part, blocks are named from the load on, and their table from the beginning.
    https://github.com/ModelEngine-Group/unified-cache-management/pull/927"""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            tracked: Any = self.tracked[request.request_id]
            tracked.first = tracked.computed // self.block_size

    def store(self, tracked: Tracked, blocks: int) -> None:
        first, table = getattr(tracked, "first", 0), tracked.table
        if first and len(tracked.request.block_hashes) > blocks:
            tracked.table = [*table[:first], *table]
        super().store(tracked, blocks)
        tracked.table = table


class WorkersKeepWhatIsDropped(MyConnector):  # type: ignore[misc]
    """What leaves the index stays in host memory. https://github.com/LMCache/LMCache/issues/987"""

    def wait_for_save(self) -> None:
        plan: Any = self._get_connector_metadata()
        plan.drops.clear()
        super().wait_for_save()


class LeaseOfASaltKept(TieredConnector):
    """A lease is looked for without the salt with which it was taken. https://github.com/LMCache/LMCache/issues/3770"""

    def _end_lease(self, rid: str) -> None:
        if (request := self.requests.get(rid)) is not None and request.cache_salt:
            self.leases.pop(rid, None)
        super()._end_lease(rid)


class ResetOfRamAlone(TieredConnector):
    """A reset leaves what is on disk. https://github.com/vllm-project/vllm/issues/57727"""

    def _drop(self, entry: Entry) -> None:
        if not (self.resets and entry.disk is not None and not entry.in_ram):
            super()._drop(entry)

    resets = False

    def reset_cache(self) -> bool:
        self.resets = True
        done = super().reset_cache()
        self.resets = False
        return done


class EndsOfStoresNotDrained(TieredConnector):
    """The ends of stores are taken over in steps that load. https://github.com/sgl-project/sglang/pull/29701"""

    def build_connector_worker_meta(self) -> Report | None:
        loads = bool(self._given.loads) or any(job.kind != "store" for job in self._given.jobs)
        return super().build_connector_worker_meta() if loads else None


class StoresCountedByRequest(TieredConnector):
    """Open stores are counted by request, so that the end of one from before a preemption counts for those after it.
    https://github.com/vllm-project/vllm/issues/51637"""

    def _end(self, number: int) -> None:
        opened = self.open[number]
        super()._end(number)
        rid = opened.job.request_id
        if opened.job.kind == "store" and rid in self.stores and all(each > number for each in self.stores[rid]):
            self.stores[rid].pop()
            if not self.stores[rid]:
                del self.stores[rid]


class PreemptionWaitsTooLate(TieredConnector):
    """Stores of preempted blocks are waited for when the step has run that gives them to others.
    https://github.com/LMCache/LMCache/pull/4822"""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self.flush = kv_connector_metadata

    def wait_for_save(self) -> None:
        super().handle_preemptions(self.flush)
        super().wait_for_save()


class AbortedPrefetchFreesItsSlots(TieredConnector):
    """The slots of a prefetch are freed when its request is aborted, and again when it has ended.
    https://github.com/sgl-project/sglang/issues/13483"""

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        for entry in self.leases.get(request.request_id, ()):
            if entry.filling and not entry.dead:
                self.free_ram.append(entry.ram)
        return super().request_finished(request, block_ids)


class LeaseKeptWithoutALoad(TieredConnector):
    """What was prefetched stays leased where the request loads nothing after all.
    https://github.com/LMCache/LMCache/pull/4852"""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            self.leases.pop(request.request_id, None)
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class LeaseEndsTwice(TieredConnector):
    """A lease ends with the load, and again with the request. https://github.com/LMCache/LMCache/issues/3381"""

    def _end_lease(self, rid: str) -> None:
        lease = self.leases.get(rid)
        super()._end_lease(rid)
        if lease is not None and rid in self.requests:
            self.ended = getattr(self, "ended", {}) | {rid: lease}

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        for entry in getattr(self, "ended", {}).pop(request.request_id, ()):
            self._unpin(entry)
        return super().request_finished(request, block_ids)


class LeaseEndsForAllItFound(TieredConnector):
    """Only what is prefetched is leased, and the lease of all that was found ends.
    https://github.com/LMCache/LMCache/pull/4523"""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        new = request.request_id not in self.leases
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if new:
            for entry in self.leases.get(request.request_id, ()):
                entry.pins -= entry.in_ram
        return answer


class DeadSlotsKept(TieredConnector):
    """Whether a forgotten chunk is needed by nobody is looked at before its last user is counted off.
    https://github.com/LMCache/LMCache/issues/1130"""

    def _unpin(self, entry: Entry) -> None:
        if entry.dead and not entry.pins:
            self._give_back(entry)
        entry.pins -= 1


class CursorMovesWithoutASlot(TieredConnector):
    """What got no slot counts as stored. https://github.com/vllm-project/vllm/pull/47235"""

    def _store(self, rid: str, state: State, tokens: int) -> None:
        super()._store(rid, state, tokens)
        state.next = max(state.next, self._chunks_of(state.request, min(tokens, state.request.num_tokens)))


REPORTED_BUGS: Iterable[str] = [
    name for name, each in list(vars().items()) if isinstance(each, type) and each.__module__ == __name__
]
