"""vLLM's native OffloadingConnector: the jobs that its scheduler's side assigns to the workers, their ends, and evictions.

The connector does not keep the matched prefix after a lookup, so the match is unknown. In vLLM 0.20 transfers have no numbers
and are not observed. Stores and evictions are observed if the store is in host memory only, and the keys of plans if there is
one KV cache group. With several tiers, the chunks that lookups fetch into host memory are observed, and their evictions
before they are loaded, but no other movement between tiers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kvtrail.connector.known.offloading.contents import Contents
from kvtrail.connector.known.probe import (
    MAX_PENDING,
    Evicted,
    GroupHit,
    Planned,
    Probe,
    ProbeEvent,
    Seen,
    StoreContents,
)
from kvtrail.connector.known.watching import after
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.semconv import GROUP_BYTES, HASH_BYTES, Kind

MAX_FETCHED = 65_536
"""Maximum number of chunks that are remembered as fetched into host memory."""
MAX_BOUNDARIES = 64
"""Maximum number of chunk ends, the last ones up to a claimed length, that are examined for a KV cache group."""
HOST = "cpu"
"""The tier into which chunks are fetched."""
FULL_ATTENTION = ("FullAttentionSpec", "MLAAttentionSpec", "SinkFullAttentionSpec")
"""vLLM's specifications of groups with blocks that hold all tokens of a request."""


class OffloadingProbe(Probe):
    def __init__(self) -> None:
        self._follows: Any = None
        """The manager, once its evictions are followed."""
        self._evicted: deque[Evicted] = deque(maxlen=MAX_PENDING)
        self._fetched: BoundedDict[bytes, None] = BoundedDict(MAX_FETCHED)
        """The chunks that were fetched into host memory and neither loaded nor evicted since."""
        self._fetches: deque[tuple[str, bytes]] = deque(maxlen=MAX_PENDING)
        """Fetches that are not reported yet: the request and the chunk."""
        self._contents: Contents | None = None
        """The store's contents, with several KV cache groups."""
        self._failure: Exception | None = None
        """The error that prevented an eviction from being noted."""

    def knows_plans(self) -> bool:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata

        return "load_jobs" in OffloadingConnectorMetadata.__dataclass_fields__

    def chunk_size(self, connector: Any) -> int | None:
        """The number of tokens per chunk if this probe observes a store that is in host memory alone; otherwise None."""
        return None if _held(connector) is None else _tokens_per_chunk(connector)

    def contents(self, connector: Any) -> StoreContents | None:
        if self._contents is None and self.chunk_size(connector) is not None and len(_groups(connector)) > 1:
            self._contents = Contents(connector.connector_scheduler.manager, lambda: _held(connector))
        return self._contents

    def held_keys(self, connector: Any) -> Sequence[Any] | None:
        held = _held(connector)
        return None if held is None else list(held)

    def groups(self, connector: Any, request: Any, computed: int, claimed: int) -> Sequence[GroupHit]:
        scheduler, held = connector.connector_scheduler, _held(connector)
        status = scheduler._req_status.get(request.request_id)
        configs = _groups(connector)
        if held is None or status is None or len(configs) < 2 or getattr(status, "partial_tail_boundary", None):
            return ()  # a boundary within a block has keys of its own
        return [
            GroupHit(config.group_idx, _boundaries(config, state.offload_keys, held, computed, claimed))
            for config, state in zip(configs, status.group_states, strict=True)
        ]

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        held = _held(connector) or ()
        return tuple([_short(key) for key in keys if key in held])

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        if self._follows is None:  # nothing can have left an empty store before
            self._follow(connector)
        news = self._evicted or self._fetches or self._failure
        if not hasattr(metadata, "load_jobs") or not (
            metadata.load_jobs or metadata.store_jobs or metadata.jobs_to_flush or news
        ):
            return None
        size = connector._vllm_config.cache_config.block_size
        scheduler = None if self.chunk_size(connector) is None else connector.connector_scheduler
        groups = _groups(connector)
        planned = partial(_planned_in_groups, connector.connector_scheduler, groups)
        if len(groups) < 2:
            planned = partial(_planned, scheduler, size)
        loads = [planned(number, job, job.dst_spec) for number, job in metadata.load_jobs.items()]
        stores = [planned(number, job, job.src_spec) for number, job in metadata.store_jobs.items()]
        evicted = self.forgotten(connector)
        events = self._take_fetches(connector) if self._fetches else ()
        return Seen(loads, stores, evicted, flushed=tuple(metadata.jobs_to_flush or ()), events=events)

    def forgotten(self, connector: Any) -> Sequence[Evicted]:
        failure, self._failure = self._failure, None
        evicted = list(self._evicted)
        self._evicted.clear()
        if failure is not None:
            raise failure
        return evicted

    def ended(self, connector: Any, output: Any) -> Sequence[int]:
        meta = getattr(output, "kv_connector_worker_meta", None)
        if meta is None or not meta.completed_jobs:
            return ()
        jobs = connector.connector_scheduler._jobs  # without the jobs that a reset has dropped
        return [
            number
            for number, workers in meta.completed_jobs.items()
            if number not in jobs or jobs[number].pending_count <= workers
        ]

    def _follow(self, connector: Any) -> None:
        """Observe the manager's calls, which show the evictions."""
        self._follows = manager = connector.connector_scheduler.manager
        tokens = _tokens_per_chunk(connector)
        if tokens is None or len(_groups(connector)) > 1:
            return
        if (host := getattr(manager, "primary_tier", None)) is not None:
            self._follow_tiers(manager, host, tokens)
        if _held(connector) is None:
            return

        def note(keys: Iterable[bytes], request_id: str | None) -> None:
            self._evicted.extend([Evicted(_short(key), tokens, None, request_id) for key in keys])

        def prepared(answer: Any, keys: Any, context: Any, *more: Any, **named: Any) -> None:
            if answer is not None and answer.evicted_keys:
                note(answer.evicted_keys, getattr(context, "req_id", None))

        def completed(answer: Any, keys: Any, *more: Any, **named: Any) -> None:
            held = _held(connector) or ()
            note([key for key in keys if key not in held], None)  # chunks with a failed copy

        after(manager, "prepare_store", prepared, self._failed)
        after(manager, "complete_store", completed, self._failed)

    def _failed(self, error: Exception) -> None:
        self._failure = error

    def _follow_tiers(self, manager: Any, host: Any, tokens: int) -> None:
        """Observe the chunks that a manager of several tiers fetches into host memory and evicts before they are loaded."""
        if not hasattr(manager, "_initiate_promotion") or not hasattr(host, "prepare_write"):
            return

        def promoted(has_begun: bool, tier: int, key: bytes, context: Any, *more: Any, **named: Any) -> None:
            if has_begun:
                self._fetches.append((context.req_id, key))
                self._fetched[key] = None

        def loaded(answer: Any, keys: Any, *more: Any, **named: Any) -> None:
            for key in keys if self._fetched else ():
                self._fetched.pop(key, None)

        def prepared(answer: Any, keys: Any, context: Any, *more: Any, **named: Any) -> None:
            for key in () if answer is None else answer.evicted_keys:
                if self._fetched.pop(key, key) is None:
                    self._evicted.append(Evicted(_short(key), tokens, None, context.req_id, HOST))

        after(manager, "_initiate_promotion", promoted, self._failed)
        after(manager, "prepare_load", loaded, self._failed)
        for call in ("prepare_store", "prepare_write"):
            after(host, call, prepared, self._failed)

    def _take_fetches(self, connector: Any) -> list[ProbeEvent]:
        """The fetches that are not reported yet, with one event for consecutive chunks of a request."""
        scheduler, tokens = connector.connector_scheduler, _tokens_per_chunk(connector) or 0
        runs: list[tuple[str, int, list[str]]] = []
        while self._fetches:
            request_id, key = self._fetches.popleft()
            states: Sequence[Any] = getattr(scheduler._req_status.get(request_id), "group_states", ())
            own: Sequence[bytes] = states[0].offload_keys if len(states) == 1 else ()
            if key not in own:
                continue  # the request has ended
            place = own.index(key)
            if not (runs and runs[-1][0] == request_id and runs[-1][1] + len(runs[-1][2]) == place):
                runs.append((request_id, place, []))
            runs[-1][2].append(_short(key))
        return [
            ProbeEvent.of(
                Kind.PREFETCH, request_id, start=place * tokens, count=len(keys) * tokens, chunk_keys=tuple(keys)
            )
            for request_id, place, keys in runs
        ]


def _groups(connector: Any) -> Sequence[Any]:
    """The configurations of the KV cache groups."""
    groups: Sequence[Any] = getattr(getattr(connector.connector_scheduler, "config", None), "kv_group_configs", ())
    return groups


def _tokens_per_chunk(connector: Any) -> int | None:
    """Tokens per chunk, if it is the same in all KV cache groups."""
    sizes = {getattr(group, "tokens_per_chunk", None) for group in _groups(connector)}
    return sizes.pop() if len(sizes) == 1 else None


def _held(connector: Any) -> Mapping[bytes, Any] | None:
    """The chunks of a store in host memory, by key; None if they cannot be observed."""
    manager = getattr(connector.connector_scheduler, "manager", None)
    policy = getattr(manager, "_policy", None) if type(manager).__name__ == "CPUOffloadingManager" else None
    held = getattr(policy, "chunks", getattr(policy, "blocks", None))
    return held if isinstance(held, Mapping) else None


def _boundaries(
    config: Any, keys: Sequence[bytes], held: Mapping[bytes, Any], computed: int, claimed: int
) -> tuple[int, ...]:
    """The lengths near the claimed one at which the store holds all chunks that a group needs. Lengths are ends of chunks and
    the claimed length itself, which may be one token before the end of a chunk."""
    size, spec = int(config.tokens_per_chunk), config.kv_cache_spec
    window, within = getattr(spec, "sliding_window", None), getattr(spec, "attention_chunk_size", None)
    has_states = hasattr(spec, "mamba_cache_mode")
    last = min(len(keys), claimed // size + 1)
    first = max(computed // size, last - MAX_BOUNDARIES)
    lengths = {place * size for place in range(first + 1, last + 1)} | (set() if has_states else {claimed})
    missing = [
        place
        for place in range(computed // size, last)
        if (chunk := held.get(keys[place])) is None or not chunk.is_ready
    ]

    def has(length: int) -> bool:
        end, begin = -(-length // size), computed
        if has_states:
            begin = length - 1
        elif window:
            begin = max(computed, length - window + 1)
        elif within:
            begin = max(computed, length // within * within)
        at = bisect_left(missing, begin // size)
        return end <= last and (at == len(missing) or missing[at] >= end)

    return tuple(sorted(filter(has, lengths)))


def _planned(scheduler: Any, size: int, number: int, job: Any, in_vllm: Any) -> Planned:
    """The plan of a job. `in_vllm` names the blocks; without `scheduler`, chunks cannot be observed. Chunks that the store
    already holds are omitted; if they are in the middle, the position is unknown."""
    blocks = tuple(int(block) for block in in_vllm.block_ids)
    keys, in_one = (None, False) if scheduler is None else _keys(scheduler, number, job)
    first = getattr(in_vllm, "block_indices", None)
    start = int(first[0]) * size if in_one and first is not None else None
    return Planned(job.req_id, start, len(blocks) * size, blocks, keys, number)


def _planned_in_groups(scheduler: Any, configs: Sequence[Any], number: int, job: Any, in_vllm: Any) -> Planned:
    """The plan of a job with several KV cache groups; the connector may omit some of them. The tokens are those of the first
    group with full attention, which has blocks for all tokens."""
    blocks, sizes = tuple(int(block) for block in in_vllm.block_ids), tuple(map(int, in_vllm.group_sizes))
    if [config.group_idx for config in configs] != list(range(len(configs))):
        return Planned(job.req_id, None, 0, None, None, number)
    starts = tuple(
        int(index) * config.tokens_per_block for index, config in zip(in_vllm.block_indices, configs, strict=True)
    )
    is_known = in_vllm is job.dst_spec or all(
        _is_one_run(scheduler, number, job, *each) for each in enumerate(zip(configs, sizes, strict=True))
    )
    full = next((n for n, config in enumerate(configs) if type(config.kv_cache_spec).__name__ in FULL_ATTENTION), None)
    tokens = 0 if full is None else sizes[full] * configs[full].tokens_per_block
    start = starts[full] if full is not None and is_known and tokens else None
    return Planned(job.req_id, start, tokens, blocks, None, number, None, sizes, starts if is_known else None)


def _is_one_run(scheduler: Any, number: int, job: Any, group: int, stored: tuple[Any, int]) -> bool:
    """Whether a store's blocks of a group are consecutive. Chunks that the store holds are omitted, as are blocks outside a
    window. The partial block at a prompt's end, which is stored with a recurrent state, is not a chunk."""
    config, blocks = stored
    if not blocks or (blocks == 1 and not any(each.requires_cow_source for each in scheduler.config.kv_group_configs)):
        return True
    keys: Sequence[bytes] = scheduler._req_status[job.req_id].group_states[group].offload_keys
    wanted = scheduler._jobs[number].keys
    places = [place for place, key in enumerate(keys) if key in wanted]
    is_whole = bool(places) and places[-1] - places[0] == len(places) - 1
    return is_whole and len(places) * config.tokens_per_chunk == blocks * config.tokens_per_block


def _keys(scheduler: Any, number: int, job: Any) -> tuple[tuple[str, ...] | None, bool]:
    """The keys of a job's chunks in the order of their tokens, and whether the chunks are consecutive; None if they cannot be
    observed. The search begins at the end, since most jobs are about a request's latest chunks."""
    wanted: Collection[bytes] = getattr(scheduler._jobs.get(number), "keys", ())
    states: Sequence[Any] = getattr(scheduler._req_status.get(job.req_id), "group_states", ())
    if not wanted or len(states) != 1:
        return None, False
    own: Sequence[bytes] = states[0].offload_keys
    places: list[int] = []
    for place in range(len(own) - 1, -1, -1):
        if own[place] in wanted:
            places.append(place)
            if len(places) == len(wanted):
                break
    if len(places) != len(wanted):
        return None, False
    return tuple(_short(own[place]) for place in reversed(places)), places[0] - places[-1] == len(places) - 1


def _short(key: bytes) -> str:
    """A key in recorded form: the end of the hash of the chunk's last block. The number of the KV cache group follows it."""
    return key[-GROUP_BYTES - HASH_BYTES : -GROUP_BYTES].hex()


PROBE = OffloadingProbe
