"""The connector's own worker side on KV caches in memory, with a model that writes what each token's KV stands for. So a
wrong block, a wrong slot or a copy that is not done yet is seen in what a request reads.

The KV of a token is a number that stands for the whole prefix up to it, with its salt and adapter, in all layers. A load that
is to fail is scribbled over and reported; reports of ends are held back for some steps, as those of a slower rank would be.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from kvtrail.connector.known.fake import Fake
from kvtrail.connector.simulate.calls import Calls, Load
from kvtrail.connector.simulate.scenario import Workers, wait
from kvtrail.connector.simulate.tiny_model import HEADS, HIDDEN
from kvtrail.connector.simulate.worker import FakeWorker

UNWRITTEN = -1.0
"""What a block holds when it is given to a request."""
FAILED = -2.0
"""What a failed load leaves, and what is computed of it."""


class OwnWorker(FakeWorker):
    """In place of a `FakeWorker`, for connectors whose worker side runs on a CPU.

    Attributes:
        wrong: what requests have read that was not theirs, in sentences, each once a load.
        copied: whether the connector has ever written to a KV cache.
        loaded: how many loads were looked at.
    """

    def __init__(
        self,
        scheduler: Any,
        workers: Workers,
        fake: Fake,
        calls: Calls,
        *,
        config: Any,
        kv_cache: Any,
        halves_first: bool = False,
    ) -> None:
        """
        Args:
            halves_first: a layer's cache is [2, blocks, tokens, ...], as FlashAttention has it, and not [blocks, ...], as
                vLLM's CPU attention has it.

        Raises:
            Exception: whatever the connector's worker side raises where it cannot run here.
        """
        super().__init__(scheduler, workers, fake, calls)
        import torch
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        self._block_size = config.cache_config.block_size
        shape = [kv_cache.num_blocks, HEADS, self._block_size, 2 * HIDDEN // HEADS]
        if halves_first:
            shape = [2, kv_cache.num_blocks, self._block_size, HEADS, HIDDEN // HEADS]
        layers = [name for group in kv_cache.kv_cache_groups for name in group.layer_names]
        caches = {name: torch.full(shape, UNWRITTEN) for name in layers}
        self._caches = {name: cache.movedim(1, 0) if halves_first else cache for name, cache in caches.items()}
        """Views whose first dimension counts blocks, and whose third one counts the tokens of a block."""
        self._connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache)
        self._connector.register_kv_caches(caches)
        of_layers = {name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
        self._forward: Any = SimpleNamespace(no_compile_layers=of_layers, attn_metadata=None, virtual_engine=0)
        self.wrong: list[str] = []
        self.copied = False
        self.loaded = 0
        self._content = _Contents()
        self._unread: dict[str, Load] = {}
        """Loads whose request has not run since."""
        self._written: dict[str, int] = {}
        """Up to where each running request's KV is written: drafts that turn out right are written in the next step."""
        self._held_back: dict[tuple[bool, str], int] = {}
        """The step in which an end is reported: of a load or of a send, and the request."""
        calls.on_load.append(self._expect)

    def _end_jobs(self, output: Any, report: Any) -> None:
        """Run the step as vLLM's model runner does, and take over what the connector's workers report."""
        worker = self._connector
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.handle_preemptions(output.kv_connector_metadata)
        loads_first = getattr(output, "has_sync_kv_loads", True)  # an older vLLM always loads first
        if loads_first:
            self._start_load()
        self._fail_synchronous(output, report)
        self._compute(output, report.invalid_block_ids)
        if not loads_first:
            self._start_load()
        worker.wait_for_save()
        results = _transfer_results(worker, output.finished_req_ids)
        report.invalid_block_ids |= worker.get_block_ids_with_load_errors()
        report.failed_recving = results.failed_recving
        report.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        for loads, ended in ((True, results.finished_recving), (False, results.finished_sending)):
            for request_id in sorted(ended or ()):  # a set's order differs from process to process
                end = self._end_of(wait(request_id, self._waited[request_id]))
                self._held_back[loads, request_id] = max(end, self._held_back.get((loads, request_id), 0))
                self._waited[request_id] += 1

    def _start_load(self) -> None:
        before = [cache._version for cache in self._caches.values()]
        self._connector.start_load_kv(self._forward)
        self.copied |= before != [cache._version for cache in self._caches.values()]

    def _end_waits(self, report: Any) -> None:
        """Report what has ended by now."""
        over = [name for name, step in self._held_back.items() if step <= self._step]
        for loads, request_id in over:
            del self._held_back[loads, request_id]
            if loads:
                report.finished_recving = (report.finished_recving or set()) | {request_id}
            else:
                report.finished_sending = (report.finished_sending or set()) | {request_id}

    def _fail(self, output: Any, report: Any) -> None:
        """Fail some of the loads between steps that are reported now; look at the others."""
        for request_id in sorted(report.finished_recving or ()):
            if blocks := self._failing(request_id):
                report.invalid_block_ids |= blocks
                self._fill(blocks, FAILED)
                self._unread.pop(request_id, None)
            else:
                self._look(request_id)

    def _fail_synchronous(self, output: Any, report: Any) -> None:
        for request_id in output.num_scheduled_tokens:
            load = self._loads.get(request_id)
            if load is not None and not load.is_async and (blocks := self._failing(request_id)):
                report.invalid_block_ids |= blocks
                self._fill(blocks, FAILED)
                self._unread.pop(request_id, None)

    def _failing(self, request_id: str) -> set[int]:
        """The blocks of a load that fails, as the seed says: those from some block on."""
        load = self._loads.pop(request_id, None)
        if load is None or not load.blocks or not self._workers.load_failures:
            return set()
        if self._rng.random() >= self._workers.load_failures:
            return set()
        self._calls.failed.add(request_id)
        return set(load.blocks[self._rng.randrange(len(load.blocks)) :])

    def _expect(self, request: Any, load: Load) -> None:
        """Before a load: what its blocks hold is undefined."""
        self._fill(load.blocks, UNWRITTEN)
        self._unread[request.request_id] = load

    def _compute(self, output: Any, failed: set[int]) -> None:
        """The forward pass: each layer waits for its loads, and writes the KV of the step's tokens. What is computed of a
        failed load is scribble as well."""
        steps = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        running = output.scheduled_cached_reqs
        self._written |= steps
        steps |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        self._written |= {request_id: steps[request_id] for request_id in running.resumed_req_ids}
        writes = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            computed, request = steps[request_id], self._scheduler.requests[request_id]
            (table,) = self._scheduler.kv_cache_manager.get_block_ids(request_id)
            start, end = min(computed, self._written[request_id]), min(computed + scheduled, request.num_tokens)
            codes = self._content.of(request)[start:end]
            if failed and failed.intersection(table[: -(-computed // self._block_size)]):
                codes = [FAILED] * len(codes)
            writes.append((table, start, codes))
            self._written[request_id] = end
        for name, cache in self._caches.items():
            self._connector.wait_for_layer_load(name)
            for table, computed, codes in writes:
                self._write(cache, table, computed, codes)
            self._connector.save_kv_layer(name, cache, self._forward.attn_metadata)
        for request_id in output.num_scheduled_tokens:
            if request_id in self._unread:
                self._look(request_id)

    def _write(self, cache: Any, table: Sequence[int], start: int, codes: Sequence[float]) -> None:
        import torch

        if not codes:
            return
        blocks = torch.tensor([table[at // self._block_size] for at in range(start, start + len(codes))])
        slots = torch.arange(start, start + len(codes)) % self._block_size
        cache[blocks, :, slots] = torch.tensor(codes).view(-1, *[1] * (cache.dim() - 2))

    def _look(self, request_id: str) -> None:
        """Whether the blocks of a load hold what they should, now that its request may read them."""
        load, request = self._unread.pop(request_id, None), self._scheduler.requests.get(request_id)
        if load is None or request is None or request.is_finished():
            return
        import torch

        self.loaded += 1
        expected = torch.tensor(self._content.of(request)[load.start : load.end])
        first, size = load.start % self._block_size, self._block_size
        for layer, cache in self._caches.items():
            read = cache[list(load.blocks)].movedim(2, 1).reshape(len(load.blocks) * size, -1)
            read = read[first : first + len(expected)]
            self.copied |= bool((read != UNWRITTEN).any())
            bad = (read != expected.view(-1, 1)).any(dim=1).nonzero()
            if len(bad):
                at = int(bad[0])
                found = float(read[at][(read[at] != expected[at]).nonzero()[0, 0]])
                self.wrong.append(
                    f"{request_id} was given tokens {load.start} to {load.end} of its prefix from the connector, in blocks"
                    f" {_some(load.blocks)}. {len(bad)} of these {len(expected)} tokens have wrong KV in {layer}, the first"
                    f" of them token {load.start + at} in block {load.blocks[(first + at) // size]}:"
                    f" {self._content.name(found)}"
                )
                return

    def _fill(self, blocks: Iterable[int], value: float) -> None:
        for cache in self._caches.values():
            cache[list(blocks)] = value


class _Contents:
    """The KV of tokens: a number for each prefix, exact in 32 bits."""

    def __init__(self) -> None:
        self._codes: dict[str, tuple[Any, list[float]]] = {}
        self._known: dict[float, str] = {}

    def of(self, request: Any) -> list[float]:
        """The KV of all tokens that a request has by now."""
        held = self._codes.get(request.request_id)
        if held is None or held[0] is not request:
            held = self._codes[request.request_id] = (request, [])
        codes, tokens = held[1], request.all_token_ids
        if len(codes) < len(tokens):
            adapter = "" if request.lora_request is None else request.lora_request.lora_name
            last = int(codes[-1]) if codes else zlib.crc32(f"{request.cache_salt}/{adapter}".encode()) >> 8
            for at in range(len(codes), len(tokens)):
                last = zlib.crc32(array("l", (last, at, tokens[at])).tobytes()) >> 8
                codes.append(float(last))
                self._known.setdefault(float(last), f"that of token {at} of {request.request_id}")
        return codes

    def name(self, code: float) -> str:
        """What a number in a KV cache stands for, in words."""
        if code == UNWRITTEN:
            return "nothing was written there."
        if code == FAILED:
            return "it was computed of a load that had failed."
        return f"it is {self._known.get(code, 'nothing that was ever computed')}."


def _transfer_results(worker: Any, ended: set[str]) -> Any:
    """What a worker says of its transfers, as vLLM asks it in this version; `ended` are the requests that have ended."""
    if hasattr(worker, "get_transfer_results"):
        return worker.get_transfer_results(ended)
    sending, recving = worker.get_finished(ended)
    return SimpleNamespace(finished_sending=sending, finished_recving=recving, failed_recving=set())


def _some(blocks: Sequence[int]) -> str:
    return ", ".join(map(str, blocks[:8])) + (", …" if len(blocks) > 8 else "")
