"""LMCache's worker on a CPU: the one part of it that knows accelerators only, rewritten for the tests.

In the worker, LMCache copies between vLLM's paged KV and chunks of its own. It brings kernels for accelerators and none for
a CPU, so the tests bring the copy, and the construction that would have chosen a kernel. The scheduler's side, which the
tests are about, and the store are LMCache's own.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch


class Copying:
    """Between vLLM's KV on a CPU, for each layer a tensor [blocks, heads, slots, K then V], and LMCache's chunks, each
    [K and V, layers, tokens, heads times size].
    """

    def __init__(self, shape: tuple[int, int, int, int, int]) -> None:
        layers, _, _, heads, size = shape
        self.layers, self.heads, self.size = layers, heads, size
        self.load_stream = self.store_stream = SimpleNamespace(synchronize=lambda: None)
        self.kvcaches: list[torch.Tensor] = []

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([2, self.layers, num_tokens, self.heads * self.size])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for number, (paged, blocks, slots) in enumerate(self._places(start, end, kwargs)):
            halves = memory_obj.tensor[:, number].view(2, end - start, self.heads, self.size)
            paged[blocks, :, slots] = torch.cat((halves[0], halves[1]), dim=-1)

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for number, (paged, blocks, slots) in enumerate(self._places(start, end, kwargs)):
            for half, tokens in enumerate(paged[blocks, :, slots].split(self.size, dim=-1)):
                memory_obj.tensor[half, number] = tokens.flatten(1)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for chunk, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(chunk, start, end, **kwargs)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for chunk, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(chunk, start, end, **kwargs)

    def _places(self, start: int, end: int, kwargs: dict[str, Any]) -> list[tuple[torch.Tensor, Any, Any]]:
        """For every layer its KV, and in which blocks and slots the tokens lie."""
        self.kvcaches = kwargs.get("kvcaches", self.kvcaches)
        mapping = kwargs["slot_mapping"][start:end]
        assert len(self.kvcaches) == self.layers
        assert bool((mapping >= 0).all())
        in_a_block = self.kvcaches[0].shape[2]
        return [(paged, mapping // in_a_block, mapping % in_a_block) for paged in self.kvcaches]


def _copying(shape: tuple[int, int, int, int, int]) -> Any:
    """A `Copying` that is LMCache's interface too; the module of that differs from version to version."""
    try:
        home = importlib.import_module("lmcache.v1.gpu_connector.gpu_connectors")
    except ImportError:
        home = importlib.import_module("lmcache.v1.gpu_connector")
    return type("CopyingOnCpu", (Copying, home.GPUConnectorInterface), {})(shape)


def prepare() -> None:
    """Make the LMCache on the path, whichever it is, build its worker on a CPU."""
    adapter: Any = importlib.import_module("lmcache.integration.vllm.vllm_v1_adapter")
    if hasattr(adapter, "_init_lmcache_engine"):
        adapter._init_lmcache_engine = functools.partial(_engine, adapter)
        adapter.LMCacheConnectorV1Impl._init_kv_caches_from_forward_context = _take_kv_caches
    else:
        gpu_connector: Any = importlib.import_module("lmcache.v1.gpu_connector")
        gpu_connector.CreateGPUConnector = lambda config, metadata, *_, **__: _copying(metadata.kv_shape)
    if not hasattr(adapter.LMCacheConnectorV1Impl, "get_kv_events"):
        adapter.LMCacheConnectorV1Impl.get_kv_events = lambda self: []  # younger than this LMCache; vLLM asks for it


def _engine(adapter: Any, config: Any, vllm_config: Any, role: str) -> Any:
    """What 0.3 does in a function that knows accelerators only."""
    utils: Any = importlib.import_module("lmcache.integration.vllm.utils")
    with suppress(KeyError):
        if (there := adapter.LMCacheEngineBuilder.get(utils.ENGINE_NAME)) is not None:
            return there
    metadata, _ = utils.create_lmcache_metadata(vllm_config)
    metadata.role = role
    return adapter.LMCacheEngineBuilder.get_or_create(
        *(utils.ENGINE_NAME, config, metadata, _copying(metadata.kv_shape)),
        *(lambda tensor, source: tensor, lambda thing, source: thing),
    )


def _take_kv_caches(self: Any, forward_context: Any) -> None:
    """vLLM has dropped the list, one entry for each virtual engine, that 0.3 looks into."""
    for name, layer in forward_context.no_compile_layers.items():
        if hasattr(layer, "kv_cache"):
            self.kv_caches.setdefault(name, layer.kv_cache)


def prepare_late(*, mended: bool) -> None:
    """`prepare`, and perhaps mend LMCache, but only when vLLM makes its first LMCache connector.

    LMCache brings numba in, and vLLM's search for a CPU's libraries, at its start, stumbles over numba.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1

    begin: Callable[..., None] = LMCacheConnectorV1.__init__
    done: list[bool] = []

    @functools.wraps(begin)
    def prepared(self: Any, *arguments: Any, **named: Any) -> None:
        if not done:
            prepare()
            if mended:
                own_block_lists()
                own_prefetched()
            done.append(True)
        begin(self, *arguments, **named)

    LMCacheConnectorV1.__init__ = prepared  # type: ignore[method-assign]  # once for this process


def let_numba_be_imported_early() -> None:
    """vLLM asks all modules for kernels. An object in numba's gives itself for its own namespace, which has no `get`."""
    ffi: Any = importlib.import_module("llvmlite.binding.ffi")
    ffi._lib_fn_wrapper.get = lambda self, name: None


def own_block_lists() -> None:
    """Mend LMCache: let it copy the list of blocks that a resumed request gets, instead of keeping vLLM's own list.

    On one device scheduler and worker share a process. vLLM's worker appends to the same list, so LMCache has each later
    block twice, and saves the KV of the wrong blocks.
    """
    adapter: Any = importlib.import_module("lmcache.integration.vllm.vllm_v1_adapter")
    plain: Callable[..., None] = adapter.RequestTracker.update

    def update(self: Any, new_token_ids: Any, new_block_ids: Any, *arguments: Any, **named: Any) -> None:
        plain(self, new_token_ids, copy.deepcopy(new_block_ids), *arguments, **named)

    adapter.RequestTracker.update = update


def own_prefetched() -> None:
    """Mend LMCache 0.5.6: let a load take references and pins of its own to the chunks that were prefetched for it.

    `retrieve` gives up those of the prefetch, and `lookup_unpin`, at the step's end, gives them up once more: then they are
    the store's, and the memory of a chunk that it holds is free.
    """
    engine: Any = importlib.import_module("lmcache.v1.cache_engine").LMCacheEngine
    events: Any = importlib.import_module("lmcache.v1.event_manager")
    if not hasattr(events.EventManager, "get_event_future"):
        return  # 0.3 takes the prefetch away when it loads
    plain: Callable[..., Any] = engine._async_process_tokens_internal

    def process(self: Any, *arguments: Any, **named: Any) -> Any:
        prefetched = self.event_manager.get_event_future(events.EventType.LOADING, named["req_id"]).result()
        for _, chunk in itertools.chain.from_iterable(prefetched):
            chunk.ref_count_up()
        chunks, size = plain(self, *arguments, **named)
        for _, chunk, _, _ in chunks:
            chunk.pin()
        return chunks, size

    engine._async_process_tokens_internal = process
