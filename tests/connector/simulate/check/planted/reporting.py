"""The chunk store with KV cache events, as a router asks for them: a correct one, and some with wrong events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from planted.chunk_store import ChunkStore, Entry


class Reporting(ChunkStore):
    """It reports the last block of each chunk, when the chunk is to be stored, and when it is evicted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.news: list[KVCacheEvent] = []

    def put(self, entry: Entry, n: int, name: bytes, now: set[bytes]) -> bool:
        before = set(self.where)
        done = super().put(entry, n, name, now)
        for gone in before - set(self.where):
            self.report_removed(gone)
        if name in self.where and name not in before:
            self.report_stored(name)
        return done

    def forget(self, names: Iterable[bytes]) -> None:
        before = set(self.where)
        super().forget(names)
        for gone in before - set(self.where):
            self.report_removed(gone)

    def report_stored(self, name: bytes) -> None:
        self.news.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(name)],  # type: ignore[arg-type]
                parent_block_hash=None,
                token_ids=[],
                block_size=self.block,
                lora_id=None,
                medium="CPU",
                lora_name=None,
            )
        )

    def report_removed(self, name: bytes) -> None:
        self.news.append(BlockRemoved(block_hashes=[maybe_convert_block_hash(name)], medium="CPU"))  # type: ignore[arg-type]

    def take_events(self) -> Iterable[KVCacheEvent]:
        news, self.news = self.news, []
        return news


class EvictionNotReported(Reporting):
    def report_removed(self, name: bytes) -> None:
        pass


class StoreNotReported(Reporting):
    """What is stored once more after an eviction is not reported again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: set[bytes] = set()

    def report_stored(self, name: bytes) -> None:
        if name not in self.known:
            self.known.add(name)
            super().report_stored(name)


class ReportedTooEarly(Reporting):
    """All chunks of a prompt are reported when it is looked up first."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.request_id not in self.live:
            for name in self.names(request):
                super().report_stored(name)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def report_stored(self, name: bytes) -> None:
        pass


class MoreRemoved(Reporting):
    """With each eviction it reports another one, of what it keeps."""

    def report_removed(self, name: bytes) -> None:
        for each in (name, *list(self.where)[-2:-1]):  # the last is the new one
            super().report_removed(each)


class RemovedElsewhere(Reporting):
    """An eviction names another medium than the store did."""

    def report_removed(self, name: bytes) -> None:
        super().report_removed(name)
        last = self.news[-1]
        assert isinstance(last, BlockRemoved)
        last.medium = "STORAGE"
