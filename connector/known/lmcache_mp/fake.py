"""LMCache in a separate process: a server in memory.

The connector is LMCache's, or the one of vLLM 0.32 with LMCACHE_USE_UPSTREAM_MP=1 in the environment. Both call the server
through LMCache's own scheduler adapter.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kvtrail.connector.known.fake import Chunks, Fake, Job
from kvtrail.connector.known.lmcache_mp.probe import blocks_of


class LMCacheMPFake(Fake):
    """Replaces the server (`RequestClient`, before LMCache 0.5.5 `MessageQueueClient`), its heartbeat, and the workers'
    copies. The server's chunks have `chunk_size` tokens (256 by default), and it answers a lookup after `answers_after` (0)
    unanswered queries. vLLM 0.32's connector calls the adapter of LMCache 0.5.6 with arguments that it does not take; they
    are translated."""

    plans_loads = True

    def __init__(self, extra: Any) -> None:
        super().__init__(extra)
        self._chunks = Chunks(self.settings.get("chunk_size", 256))
        self._number = 0
        """The number of the last store."""
        self._server = _Server(self._chunks, self.settings.get("answers_after", 0))

    @contextmanager
    def installed(self) -> Iterator[None]:
        adapters: Any = importlib.import_module(f"{_LMCACHE}.vllm_multi_process_adapter")
        in_vllm: Any = importlib.import_module(f"{_VLLM}.lmcache_mp_connector")

        class Adapter(adapters.LMCacheMPSchedulerAdapter):  # type: ignore[misc]  # its class is known at run time only
            def _ensure_heartbeat_started(self) -> None:
                """The server in memory is always there."""

        def adapter(url: str, context: Any, config: Any, timeout: float, interval: float) -> Any:
            model, size = config.model_config.model, config.cache_config.block_size
            times = {"mq_timeout": timeout, "heartbeat_interval": interval}
            if "actual_world_size" in adapters.ParallelStrategy.__dataclass_fields__:  # LMCache before 0.4.7
                one = adapters.ParallelStrategy(False, 1, 0, 1, 0, 1, 1)
                return Adapter(url, context, model, vllm_block_size=size, parallel_strategy=one, **times)
            one = adapters.ParallelStrategy(False, 1, 0, 1, 1, 1)
            return Adapter([url], context, model, size, one, **times)

        if hasattr(adapters, "RequestClientFactory"):
            server = mock.patch.object(adapters.RequestClientFactory, "create", return_value=self._server)
        else:
            server = mock.patch.object(adapters, "MessageQueueClient", return_value=self._server)
        of_vllm = mock.patch.object(in_vllm, "create_scheduler_adapter", adapter)
        with ExitStack() as stack:
            stack.enter_context(server)
            stack.enter_context(of_vllm)
            with suppress(ImportError):  # LMCache's own connector needs a newer vLLM than vLLM's copy does
                of_lmcache: Any = importlib.import_module(f"{_LMCACHE}.lmcache_mp_connector")
                stack.enter_context(mock.patch.object(of_lmcache, "LMCacheMPSchedulerAdapter", Adapter))
            yield

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        """The jobs of a step. A retrieval succeeds or fails as a whole, including the blocks that vLLM had computed."""
        for request in plan.requests:
            name, op = request.request_id, request.op
            if request.direction == "STORE":
                self._number += 1
                yield Job(self._number, holds=(name,), then=(op.token_ids, op.start, op.end, _salt(request)))
            else:
                yield Job(("retrieve", name), loads=(name,), fills=blocks_of(op) or ())

    def worker_metadata(self, ended: Sequence[Job]) -> None:
        for job in ended:
            if job.then is not None:
                self._chunks.store(*job.then)


class _Server:
    """The part of an LMCache server that the scheduler's side calls. It answers at once."""

    def __init__(self, chunks: Chunks, answers_after: int) -> None:
        self._chunks = chunks
        self._answers_after = answers_after
        self._asked: dict[str, tuple[int, int]] = {}
        """For each request, the number of chunks that its lookup matched, and of further queries that stay unanswered."""

    def submit_request(self, kind: Any, payloads: Sequence[Any], answer: Any = None) -> Any:
        """Handle a request in the form of LMCache before 0.5.5."""
        return getattr(self, kind.name.lower())(*payloads)

    def get_experimental(self) -> Any:
        return _done([])

    def get_chunk_size(self) -> Any:
        return _done(self._chunks.size)

    def lookup(self, key: Any, readers: int) -> Any:
        matched = self._chunks.prefix(key.token_ids[: key.end], salt=_salt(key)) // self._chunks.size
        self._asked[key.request_id] = matched, self._answers_after
        return _done(None)

    def query_prefetch_status(self, request_id: str) -> Any:
        matched, unanswered = self._asked[request_id]
        self._asked[request_id] = matched, unanswered - 1
        return _done(None if unanswered > 0 else matched)

    def free_lookup_locks(self, key: Any, readers: int) -> Any:
        return _done(None)

    def end_session(self, request_id: str) -> Any:
        self._asked.pop(request_id, None)
        return _done(None)

    def report_block_allocation(self, *allocation: Any) -> Any:
        return _done(None)

    def clear(self, force: bool) -> Any:
        self._chunks.clear()
        return _done(None)

    def close(self) -> None:
        """Nothing is open."""


def _salt(named: Any) -> str:
    """The cache salt of a key or of a request's plan; an older LMCache has none."""
    return getattr(named, "cache_salt", "")


def _done(value: Any) -> Any:
    return SimpleNamespace(query=lambda: True, result=lambda timeout=None: value, wait=lambda timeout=None: True)


_LMCACHE = "lmcache.integration.vllm"
_VLLM = "vllm.distributed.kv_transfer.kv_connector.v1"
FAKE = LMCacheMPFake
