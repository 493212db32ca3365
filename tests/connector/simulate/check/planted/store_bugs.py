"""Bugs of the kinds that connectors' authors write, each planted in the chunk store. Each is one that its author's own tests
may pass: it needs a preemption, a full store, a failure, or two requests at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from planted.chunk_store import ChunkStore, Entry


class HeldAfterAbort(ChunkStore):
    """What is read for a request that ends meanwhile is held for ever."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if request.request_id in self.live:
            self.live[request.request_id].reading = []
        return super().request_finished(request, block_ids)


class MarkMovedByRefusedStore(ChunkStore):
    """A chunk for which there is no slot counts as stored: what comes behind it is never found."""

    def put(self, entry: Entry, n: int, name: bytes, now: set[bytes]) -> bool:
        super().put(entry, n, name, now)
        return True


class TableAppendedOnResume(ChunkStore):
    """Blocks of a request that goes on after a preemption are appended to those that it had; what it stored then counts."""

    def grow(self, entry: Entry, added: list[int], resumed: bool) -> None:
        entry.table += added

    def write(self, entry: Entry, before: int, scheduled: int) -> None:
        entry.preempted = entry.request.num_preemptions
        super().write(entry, before, scheduled)


class SlotLostByTwins(ChunkStore):
    """Two requests that compute the same chunk in one step store it twice, and the first one's slot is lost."""

    def put(self, entry: Entry, n: int, name: bytes, now: set[bytes]) -> bool:
        if name in self.where and self.written_at[name] == self.step and self.spare:
            self.where[name] = self.spare.pop()
        return super().put(entry, n, name, now)


class KeysOfTwoBytes(ChunkStore):
    def names(self, request: Any) -> list[bytes]:
        return [name[-2:] for name in super().names(request)]


class ReadersForgotten(ChunkStore):
    """A chunk that somebody waits for may be evicted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.put_off: list[Any] = []
        self.due: list[Any] = []
        self.reported_later: set[str] = set()

    def hold(self, entry: Entry, names: list[bytes]) -> None:
        entry.reading = []

    def read(self, entry: Entry, start: int, end: int, table: list[int]) -> None:
        super().read(entry, start, end, table)
        if self.apart:  # it reads a step later, and others may have written there by then
            self.put_off += self.work.reads
            self.work.reads = []

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self.work.reads += self.due
        self.due, self.put_off = self.put_off, []
        self.work.waiting, self.reported_later = self.reported_later, self.work.waiting
        return super().build_connector_meta(scheduler_output)


class WrittenAStepLate(ChunkStore):
    """Blocks are copied a step after their request may have lost them, and lookups find the chunk before that."""

    def run_writes(self, before: int) -> None:
        super().run_writes(before - 1)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        super().request_finished(request, block_ids)
        return False, None


class MappingOffByOne(ChunkStore):
    """Where vLLM has a part of a chunk, the read begins a block too early in the slot."""

    def read(self, entry: Entry, start: int, end: int, table: list[int]) -> None:
        known = len(self.work.reads)
        super().read(entry, start, end, table)
        self.work.reads[known:] = [(slot, max(0, first - 1), blocks) for slot, first, blocks in self.work.reads[known:]]


class ChunksRoundedUp(ChunkStore):
    """A chunk that is computed in part is stored."""

    def computed(self, before: int, scheduled: int) -> int:
        return -(-(before + scheduled) // self.chunk)


class ComputedNotSubtracted(ChunkStore):
    """What vLLM has itself is promised again."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return super().get_num_new_matched_tokens(request, 0)


class StoredBeforeComputed(ChunkStore):
    """All of a prompt is stored in its first step."""

    def computed(self, before: int, scheduled: int) -> int:
        return 10**6

    def blocks(self, entry: Entry, n: int) -> list[int]:
        return super().blocks(entry, n) or [entry.table[-1]] * (self.chunk // self.block)


class FailuresIgnored(ChunkStore):
    """What was stored of a load that had failed stays."""

    def failed(self, entry: Entry, bad: set[int]) -> None:
        pass


class OneMemoryForAllRanks(ChunkStore):
    """Every rank stores into the memory of the last one."""

    shared: ClassVar[dict[str, Any]] = {}

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        transfer = self._vllm_config.kv_transfer_config
        assert transfer is not None
        if self.rank == 0:
            self.shared.clear()
        self.memory = self.shared.setdefault(str(transfer.engine_id), self.memory)


class SaidTooEarly(ChunkStore):
    """A load is reported as it begins: its bytes come a step later."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.before: list[Any] = []

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        work: Any = self._get_connector_metadata()
        work.reads, self.before = self.before, work.reads
        super().start_load_kv(forward_context)


class SaidTwice(ChunkStore):
    """A load is reported again in the next step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.again: set[str] = set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, arrived = super().get_finished(finished_req_ids)
        again, self.again = self.again, arrived or set()
        return sent, self.again | again


class NeverSaid(ChunkStore):
    """Of several loads that end in a step one is reported."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, arrived = super().get_finished(finished_req_ids)
        return sent, set(sorted(arrived or ())[:1])


class ResetForgetsHalf(ChunkStore):
    """Every second chunk survives a reset."""

    def reset_cache(self) -> bool:
        kept = dict(list(self.where.items())[::2])
        if not super().reset_cache():
            return False
        self.where.update(kept)
        self.spare = [slot for slot in self.spare if slot not in kept.values()]
        return True


class ResetLosesSlots(ChunkStore):
    """What is forgotten by a reset is not free again, but for the slots that were."""

    def reset_cache(self) -> bool:
        spare = list(self.spare)
        done = super().reset_cache()
        self.spare = spare if done and spare else self.spare
        return done


class SaltIgnored(ChunkStore):
    def names(self, request: Any) -> list[bytes]:
        tokens = list(request.all_token_ids)
        ends = range(self.chunk, len(tokens) + 1, self.chunk)
        return [repr(tokens[:end]).encode() for end in ends]


class AllocationIgnored(ChunkStore):
    """It reads all that it has found, whether or not vLLM has given room for that."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        entry, end = self.entry(request), self.prefix(request) * self.chunk
        if end:
            self.read(entry, 0, end, blocks.get_block_ids()[0])
        if num_external_tokens and self.apart:
            self.work.waiting.add(request.request_id)


class FreedWhileStored(ChunkStore):
    """The blocks of a request that has ended are given back before they are copied."""

    kvtrail_check_settings = {**ChunkStore.kvtrail_check_settings, "lag": (2,)}  # noqa: RUF012

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        super().request_finished(request, block_ids)
        return False, None


class LookupMovesMark(ChunkStore):
    """A lookup counts what it finds as stored for this request; what is evicted meanwhile is not stored again."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        entry = self.entry(request)
        entry.done = self.prefix(request) + 1
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


STORE_BUGS = {
    each.__name__: each
    for each in (
        HeldAfterAbort, MarkMovedByRefusedStore, TableAppendedOnResume, SlotLostByTwins, KeysOfTwoBytes, ReadersForgotten,
        WrittenAStepLate, MappingOffByOne, ChunksRoundedUp, ComputedNotSubtracted, StoredBeforeComputed, FailuresIgnored,
        OneMemoryForAllRanks, SaidTooEarly, SaidTwice, NeverSaid, ResetForgetsHalf, ResetLosesSlots, SaltIgnored,
        AllocationIgnored, FreedWhileStored, LookupMovesMark,
    )
}  # fmt: skip
