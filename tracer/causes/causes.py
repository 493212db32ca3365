"""Derives causes from one recorder's events: tracks the caches of its engine and its requests' prompts.

A connector's lookup and the following allocation count as one moment: nothing is evicted between them. So a prompt is split
when its blocks are allocated, using all reports until then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter

from msgspec.structs import replace

from kvtrail.tracer.causes.attribution import AdmissionContext, Attribution, Store
from kvtrail.tracer.causes.cache_model import UNSTORED, BlockChange, BlockState, CacheModel, Key
from kvtrail.tracer.causes.fleet import MODEL_DIGITS, Fleet
from kvtrail.tracer.causes.hybrid_groups import HybridGroups
from kvtrail.tracer.causes.request_state import HandedOver, RequestState, doubted, in_common, named, shortened
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.cache_groups import FULL, groups_of
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import (
    UNFAMILIAR,
    Alloc,
    Event,
    Evict,
    Handoff,
    Heartbeat,
    Job,
    LoadError,
    Lookup,
    Preempt,
    PrefixCache,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    StorePlan,
    TransferEnd,
    Unfamiliar,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.events.hash_chains import Chains, split_hashes
from kvtrail.tracer.events.semconv import HASH_BYTES, Kind
from kvtrail.tracer.ledger.block_table import BlockTable
from kvtrail.tracer.ledger.facts import Breakdown, tiers_of
from kvtrail.tracer.model.causes import PEER, Cause, Detail, NotRecorded, Part

GPU = "gpu"
"""The tier of vLLM's own prefix cache."""
STORE = "store"
"""The tier of a connector that names none."""
MAX_OPEN = 100_000
"""Maximum numbers of tracked requests and of tracked transfers; beyond that the longest untouched is dropped."""
MAX_FRESH = 500_000
"""Maximum number of remembered blocks that were first named after missing events."""
SHADOW_NS = 60 * 10**9
"""Time after a loss in which a request may still compute an unknown prompt."""


class Causes:
    """The state of one engine's caches, from one recorder's events.

    Attributes:
        engine: its name.
        breakdowns: admissions with new or changed parts, since the caller last cleared it.
    """

    def __init__(self, fleet: Fleet | None = None) -> None:
        """`fleet` has the other engines."""
        self.breakdowns: list[Breakdown] = []
        self.engine = ""
        self._fleet = fleet or Fleet()
        self._identity: str | None = None
        self._vllm = CacheModel(GPU)
        self._number = 0
        """The number of facts: an event may have several."""
        self._changes: list[PrefixCache] = []
        """Changes of caches that are not entered yet."""
        self._admitting = ""
        """The request whose allocation caused the changes of vLLM's cache."""
        self._has_groups = False
        """Whether there are several KV cache groups. If the needs of a hit are unknown, missing blocks of the first group
        represent all groups."""
        self._stores: dict[str, CacheModel] = {}
        self._chains = Chains()
        self._requests: OrderedDict[str, RequestState] = OrderedDict()
        self._awaited: set[str] = set()
        """Requests whose next step has new information; the steps of the others only continue."""
        self._computing: dict[str, BlockChange] = {}
        """The admitted requests that have not computed their whole prompt yet, each with its allocation."""
        self._stored = BoundedDict[Job, list[Key]](MAX_OPEN)
        """The chunks of open stores."""
        self._lost: tuple[int, NotRecorded] | None = None
        """The number of the latest loss of events, and its reason."""
        self._fresh: dict[bytes, None] | None = None
        """Blocks that were first named after missing events: all facts about them are known."""
        self._shadow_ns = 0
        self._unprobed: set[str] = set()
        """Connectors with a probe that switched itself off."""
        self._handed_over: BoundedDict[bytes, None] = BoundedDict(MAX_FRESH)
        """The blocks that this engine has only loaded from a hand-off."""
        self._takes = False
        """Whether other engines hand over to this one."""

    def enter(self, event: Event) -> None:
        """Enter one event, the next of the recorder on the scheduler's side.

        Changes of vLLM's cache that are recorded before an allocation were made by the allocation: the preceding lookup saw
        the old state. So they are entered with the next other event. A heartbeat may come in between, since another thread
        reports it."""
        kind = event.kind
        if self._changes and kind not in _AT_ANY_MOMENT and (kind is not _ALLOC or event.request != self._admitting):
            if kind is _ALLOC:
                self._admitting = event.request or ""
            else:
                self._follow(self._admitting)
                self._admitting = ""
        if enter := _ENTER.get(kind):
            enter(self, event)

    def mark_gap(self, why: NotRecorded, *, before: Event) -> None:
        """Note that events are missing before this one: facts that they may have changed become unknown."""
        self._follow(self._admitting)
        self._number += 1
        self._lost = (self._number, why)
        for cache in (self._vllm, *self._stores.values()):
            cache.mark_gap(*self._lost)
        for request in self._requests.values():
            request.offers.clear()
            request.doubt = why
        self._computing.clear()
        self._stored.clear()
        self._fresh = {}
        self._shadow_ns = before.end_ns + SHADOW_NS

    def _enter_unfamiliar(self, event: Unfamiliar) -> None:
        self.mark_gap(NotRecorded.LOST, before=event)

    def _enter_heartbeat(self, event: Heartbeat) -> None:
        self._unprobed.update(event.recorder_probes_off or ())
        if event.recorder_closed:
            self._identity = None
            self._fleet.leave(self)

    # Requests.

    def _of(self, event: Event) -> RequestState:
        name = event.request or ""
        request = self._requests.get(name)
        if request is None:
            request = self._requests[name] = RequestState(
                not_recorded=NotRecorded.LOST if self._lost is None else self._lost[1]
            )
            if len(self._requests) > MAX_OPEN:
                self._drop(next(iter(self._requests)))
        if event.epoch > request.epoch:
            self._settle(request)
            request.epoch, request.reached, request.failed, request.lost = event.epoch, 0, None, (0, 0)
        return request

    def _drop(self, name: str) -> None:
        self._requests.pop(name, None)
        self._awaited.discard(name)
        self._computing.pop(name, None)

    def _enter_request_start(self, event: RequestStart) -> None:
        self._drop(event.request or "")
        request = self._of(event)
        request.block_size = event.block_size or 0
        request.identity = event.identity
        request.not_recorded = NotRecorded.BLOCK_HASHES if event.block_after is None else NotRecorded.CHAIN
        self._chains.add(request.chain, event)
        if self._fresh and not request.chain.is_whole:
            self._fresh = {}  # its prompt may be equal to one that was named before
        if self._fresh is not None and event.block_seen is not None and request.chain.is_whole:
            if len(self._fresh) >= MAX_FRESH:
                for key in list(islice(self._fresh, MAX_FRESH // 8)):
                    del self._fresh[key]
            self._fresh.update(dict.fromkeys(request.chain.hashes[event.block_seen :]))

    def _enter_handoff(self, event: Handoff) -> None:
        if event.takes:
            self._takes = True
            # A hand-off without a name is kept by no engine, so nothing is handed over.
            tokens = event.handoff_tokens if event.handoff_keys else 0
            fact = self._fact(BlockState.HELD, event)
            self._of(event).handed = HandedOver(fact, event.epoch, tokens, event.handoff_peer or "")

    def _enter_lookup(self, event: Lookup) -> None:
        identity = event.cache_identity
        if identity is not None and not self._vllm.is_reported:
            identity = identity[:MODEL_DIGITS]  # its contents are unknown
        if identity is not None and identity != self._identity:
            self.engine, self._identity = event.engine, identity
            self._fleet.join(identity, self)
        request, connector_id = self._of(event), event.connector_id
        self._awaited.add(event.request or "")
        if event.block_hashes:
            self._chains.add(request.chain, event)
        offers = request.offers
        if offers and (connector_id in offers or offers.allocs):  # the connectors are asked again
            offers.clear()
        offers.enter(event)
        if event.returned is None and event.error is None:
            request.deferred.add(connector_id)

    def _enter_alloc(self, event: Alloc) -> None:
        request = self._of(event)
        admitted = request.offers.allocate(event)
        if admitted is not None and admitted.is_last:
            self._admit(request, event, admitted.lookup)

    def _admit(self, request: RequestState, event: Alloc, lookup: Lookup) -> None:
        """Attribute the prompt of a request that has received blocks."""
        self._give_up(request)
        allocs = request.offers.allocs
        allocated = max(0, *(alloc.allocated for alloc in allocs))
        size = request.block_size = lookup.block_size or request.block_size
        full = lookup.total // size if size else 0
        declared = groups_of(lookup.groups)
        is_known = bool(size) and request.chain.is_whole and request.chain.end >= full
        not_recorded = request.not_recorded
        has_groups = len(declared) > 1
        if has_groups and request.chain.end > full:  # hashes of parts of blocks, which a hit may also contain
            is_known, not_recorded = False, NotRecorded.GROUPS
        chain = followed = request.chain.hashes if is_known else None
        if chain is not None and not self._vllm.is_reported:
            followed, not_recorded = None, NotRecorded.CACHE_EVENTS
        groups = HybridGroups.of(declared, size) if self._has_groups else None
        going_on = list(self._going_on(event.request or "", chain, full))
        pending, by = max(((same, fact) for _, same, fact in going_on), key=itemgetter(0), default=(0, None))
        computed, possible = lookup.computed, 0
        if groups is not None and groups.has_states and chain and not allocated:
            computed, possible = groups.held(self._vllm, chain, size, computed, self._is_fresh)
        begun = 0
        if going_on and has_groups:
            begun = min(going.reached // going.block_size if going.block_size else 0 for going, *_ in going_on)
        together = groups.unit // size if groups is not None else 1
        context = AdmissionContext(
            total=lookup.total,
            computed=computed,
            possible=possible,
            sources=self._sources(request, allocs, allocated) if allocated else (),
            block_size=size,
            chain=followed if full else (),
            not_recorded=not_recorded,
            shadow=self._shadow(event, request) if chain else None,
            groups=groups,
            has_groups=self._has_groups and groups is None,
            pending=pending // together * together,
            begun=begun // together * together,
            pending_by=by,
            promised=request.lost,
            promised_by=request.lost_tier,
            failed=request.failed,
            handed=request.handed if request.handed and request.handed.epoch == event.epoch else None,
        )
        lookups = [offer.lookup for offer in request.offers.values() if offer.alloc is not None]
        if len(lookups) > 1:
            lookups = [each for each in lookups if not each.has(Capability.ANSWERS_FOR_CHILDREN)] or lookups
        stores = [self._store_of(each, request, size, is_only=len(lookups) == 1) for each in lookups]
        request.deferred.clear()
        parts = Attribution(context, self._vllm, stores, self._is_fresh).parts()
        if lookup.cache_identity is not None and chain:
            parts = self._elsewhere(lookup.cache_identity, request, chain, size, parts)
        if request.handed is not None:
            parts = named(parts, request.handed)
        if lookup.computed + allocated > lookup.total:  # the answer exceeds the prompt: `over-report` has found it
            contradicted = Part(Cause.UNKNOWN, "", 0, lookup.total, Detail(why=NotRecorded.CONTRADICTION))
            parts = [contradicted] if lookup.total else []
        split = Breakdown(event, lookup, parts, chain, not allocated, request.identity, size)
        self.breakdowns.append(split)
        if allocated:
            request.open, request.steps, request.doubt = split, 0, None
            request.is_loading = any(each.is_async for each in lookups)
            request.promised = (lookup.computed, min(lookup.computed + allocated, lookup.total - 1))
        if chain and (request.handed is not None or self._handed_over):
            loaded, begin = lookup.computed // size, (lookup.computed + allocated) // size
            if request.handed is not None:
                self._handed_over.update(dict.fromkeys(b for b in chain[loaded:begin] if not self.has_known(b)))
            for block in chain[begin:full]:
                self._handed_over.pop(block, None)  # it computes them itself
        request.computing = full
        if size and (computed + allocated) // size < full:
            self._computing[event.request or ""] = self._fact(BlockState.STORING, event, event.request or "")

    def _elsewhere(
        self, identity: str, request: RequestState, chain: Sequence[bytes], size: int, parts: Sequence[Part]
    ) -> list[Part]:
        """The parts; tokens that are new to this engine but computed by another one are marked."""
        made: list[Part] = []
        may_be_handed = request.handed is not None and request.handed.tokens is None
        refusal = "not-handed" if self._takes and not may_be_handed else ""
        is_all_heard = not self._fleet.has_strangers(identity, self)
        for part in parts:
            known, engine = 0, ""
            if part.cause is Cause.NEW:
                known, engine = self._fleet.known(identity, self, chain[part.start // size : part.end // size])
            if known:
                tokens = (part.start // size + known) * size - part.start
                made.append(Part(Cause.ELSEWHERE, "", part.start, tokens, Detail(engine=engine, refusal=refusal)))
                part = replace(part, start=part.start + tokens, tokens=part.tokens - tokens)
            if part.cause is Cause.NEW and not is_all_heard:
                part = replace(part, cause=Cause.UNKNOWN, detail=Detail(why=NotRecorded.FLEET))
            if part.tokens:
                made.append(part)
        return made

    def has_known(self, block: bytes) -> bool:
        """Whether one of its caches ever held a block, not counting hand-offs: a handed-over block does not show that this
        engine computed it, regardless of the order in which engines report."""
        return block not in self._handed_over and any(
            cache.last(block) is not None for cache in (self._vllm, *self._stores.values())
        )

    def _sources(self, request: RequestState, allocs: Sequence[Alloc], allocated: int) -> list[tuple[str, int]]:
        """The tokens that these allocations are to load, by tier. If a connector has named one tier, it is used for unnamed
        sources, too; for one that never names any, the source is another engine if there is a hand-off."""
        by_tier: list[tuple[str, int]] = []
        left = allocated
        for alloc in allocs:
            for tier, tokens in tiers_of(alloc).items():
                if count := min(left, tokens):
                    by_tier.append((tier, count))
                    left -= count
            if alloc.allocated and len(by_tier) == 1:
                self._store(alloc.connector_id).name = by_tier[0][0]
        if left:
            loading = max(allocs, key=lambda each: each.allocated).connector_id
            tier = self._store(loading).name
            by_tier.append((PEER if tier == STORE and request.handed is not None else tier, left))
        return by_tier

    def _store_of(self, lookup: Lookup, request: RequestState, block_size: int, *, is_only: bool) -> Store:
        cache = self._store(lookup.connector_id)
        chunk = lookup.chunk_size or 0  # without it the probe does not see the store's chunks
        tells = cache.reports_changes or lookup.has(Capability.TELLS_CHUNKS)
        believed = tells and lookup.connector not in self._unprobed
        groups, why = None, NotRecorded.PROBE
        if self._has_groups:
            by_block = lookup.has(Capability.TELLS_GROUPS)
            if chunk:
                groups = HybridGroups.of(groups_of(lookup.groups), block_size, chunk_size=chunk, by_block=by_block)
            if believed and (groups is None or not cache.reports_changes):
                believed, why = False, NotRecorded.GROUPS if groups is None or not by_block else cache.why
        cache.is_reported = is_reported = believed and bool(chunk and block_size) and chunk % block_size == 0
        offered, was_deferred = lookup.answer or 0, lookup.connector_id in request.deferred
        takes = request.handed is not None and (is_only or cache.name == PEER)
        is_guarded = lookup.refused is not None and not lookup.returned
        return Store(cache, is_reported, chunk, lookup.matched, offered, was_deferred, groups, why, takes, is_guarded)

    def _going_on(
        self, name: str, chain: Sequence[bytes] | None, full: int
    ) -> Iterator[tuple[RequestState, int, BlockChange]]:
        """The running requests that still compute the same prompt, each with the number of common blocks."""
        if not chain:
            return
        for other, fact in self._computing.items():
            going = self._requests.get(other)
            if other == name or going is None or not going.chain.is_whole:
                continue
            same = in_common(chain, going.chain.hashes, min(full, going.computing))
            if same:
                yield going, same, fact

    def _shadow(self, event: Alloc, request: RequestState) -> NotRecorded | None:
        """Why requests with unknown prompts may be computing; None if there are none."""
        if event.end_ns < self._shadow_ns:
            return self._lost[1] if self._lost else None
        for name in self._computing:
            other = self._requests.get(name)
            if other is not None and other is not request and not other.chain.is_whole:
                return other.not_recorded
        return None

    def _is_fresh(self, key: Key) -> bool:
        return self._fresh is not None and key in self._fresh

    def _enter_schedule(self, event: Schedule) -> None:
        name = event.request or ""
        if name not in self._awaited:
            return  # the usual case: it continues
        request = self._of(event)
        request.offers.clear()
        request.reached = max(request.reached, event.computed + event.scheduled)
        if event.computed + event.scheduled >= request.computing * request.block_size:
            self._computing.pop(name, None)
        request.failed_from = None
        if request.open is not None:
            request.steps += 1
            if event.computed < request.promised[1]:
                # the load copied less than promised: the rest is computed
                request.open.parts = shortened(request.open.parts, event.computed, request.failed)
                self._settle(request)
            elif request.steps > 1:
                self._settle(request)
        if request.open is None and name not in self._computing:
            self._awaited.discard(name)

    def _settle(self, request: RequestState) -> None:
        """Settle a promised load: its tokens have arrived, or never will."""
        if request.open is not None:
            if request.failed_from is not None:
                request.open.parts = shortened(request.open.parts, request.failed_from, request.failed)
            if request.doubt is not None:
                request.open.parts = doubted(request.open.parts, request.doubt)
            request.open.is_final = True
            self.breakdowns.append(request.open)
            request.open = None

    def _give_up(self, request: RequestState) -> None:
        """Note that the request is admitted again in its epoch: none of its promised tokens arrived."""
        if request.open is not None:
            tiers = [part.tier for part in request.open.parts if part.cause is Cause.LOADED]
            request.lost, request.lost_tier, request.open = request.promised, "".join(tiers[-1:]), None

    def _enter_received(self, event: Received) -> None:
        if event.failed:
            self._of(event).failed = self._fact(BlockState.FAILED, event)
        request = self._requests.get(event.request or "")
        if request is None:
            return
        request.is_loading = False
        if request.has_ended:
            if event.failed and request.failed_from is None:
                request.failed_from = request.promised[0]
            self._settle(request)
            self._drop(event.request or "")

    def _enter_load_error(self, event: LoadError) -> None:
        if event.request is None:
            return
        request = self._of(event)
        request.failed = self._fact(BlockState.FAILED, event)
        if request.open is not None:
            failed = set(event.blocks_ids)
            first = [
                size * next((n for n, block in enumerate(ids) if block in failed), len(ids))
                for size, ids in BlockTable(request.open.event).sized()
            ]
            request.failed_from = max(request.promised[0], min(first, default=0))

    def _enter_preempt(self, event: Preempt) -> None:
        self._computing.pop(event.request or "", None)

    def _enter_request(self, event: RequestEnd) -> None:
        request = self._of(event)
        request.has_ended = request.open is not None and request.is_loading  # whose end decides the outcome of the load
        if not request.has_ended:
            self._settle(request)
        if event.block_hashes:
            self._chains.add(request.chain, event)
        if request.has_ended:
            self._awaited.discard(event.request or "")
            self._computing.pop(event.request or "", None)
        else:
            self._drop(event.request or "")

    # Caches.

    def _store(self, connector_id: str) -> CacheModel:
        cache = self._stores.get(connector_id)
        if cache is None:
            cache = self._stores[connector_id] = CacheModel(STORE)
            if self._lost is not None:
                cache.mark_gap(*self._lost)
        return cache

    def _enter_prefix_cache(self, event: PrefixCache) -> None:
        """Note the changes of a cache."""
        self._has_groups = self._has_groups or event.group is not None
        if not event.cache_changes and not event.cache_whole:
            self._stop_following(event)
        else:
            self._changes.append(event)

    def _follow(self, by: str) -> None:
        """Enter the changes of the caches until now; this request caused those of vLLM's cache."""
        changes, self._changes = self._changes, []
        while changes:
            event = changes.pop(0)
            cache, owner = self._vllm, by
            if event.pool_tier is not None:
                cache, owner = self._store(event.connector_id), event.pushed_by or ""
                cache.name, cache.reports_changes = event.pool_tier, True
            if event.cache_whole:
                parts = [event]
                while changes and changes[0].end_ns == event.end_ns and changes[0].pool_tier == event.pool_tier:
                    parts.append(changes.pop(0))
                for number in range(len(groups_of(event.groups))):
                    own = [part for part in parts if (part.group or 0) == number]
                    self._list(cache.group(number), own, event, None if event.group is None else number)
            elif not event.group or event.group < len(groups_of(event.groups)):
                self._change(cache.group(event.group or 0), event, owner)

    def _stop_following(self, event: PrefixCache) -> None:
        """Note that the changes of a cache are no longer reported: its contents become unknown."""
        self._follow(self._admitting)
        self._number += 1
        self._fresh = {}
        if event.pool_tier is None:
            self._vllm = CacheModel(GPU)
            self._vllm.mark_gap(self._number, NotRecorded.CACHE_EVENTS)
        else:
            store = self._stores[event.connector_id] = CacheModel(event.pool_tier)
            store.mark_gap(self._number, NotRecorded.PROBE)

    def _list(self, cache: CacheModel, events: Sequence[PrefixCache], first: PrefixCache, group: int | None) -> None:
        """Enter a complete list of a cache, from its first event on, for one KV cache group. If it differs from the known
        state, earlier changes were not reported."""
        held = [key for event in events for key in split_hashes(event.block_hashes)]
        before = cache.states(held, self._is_fresh)
        is_known = (
            cache.is_reported
            and len(held) == cache.size
            and all(f is not None and f.state is BlockState.HELD for f in before)
        )
        if cache.is_reported and not is_known and cache.whole_from <= cache.listed_at:
            self._number += 1
            cache.mark_gap(self._number, NotRecorded.LATE)
        fact = self._fact(BlockState.HELD, (events or (first,))[0], group=group)
        cache.is_reported, cache.size, cache.listed_at = True, len(held), fact.number
        if not is_known:
            cache.record(held, fact)

    def _change(self, cache: CacheModel, event: PrefixCache, by: str) -> None:
        if not cache.is_reported:  # the complete list arrives later
            cache.is_reported = True
            self._number += 1
            cache.mark_gap(self._number, self._lost[1] if self._lost else NotRecorded.LATE)
        is_store = event.pool_tier is not None
        hashes, known = split_hashes(event.block_hashes), 0
        for emptied, changes in groupby(event.cache_changes, key=lambda change: change == 0):
            if emptied:
                cache.clear(self._fact(BlockState.RESET, event))
                for each in (cache, *cache.others):
                    each.size = 0
                if not is_store:
                    self._computing.clear()  # only a cache without used blocks is reset
                continue
            held = self._fact(BlockState.HELD, event, by if is_store else "", event.group)
            gone = self._fact(BlockState.EVICTED, event, by, event.group)
            facts: list[BlockChange] = []
            for change in changes:
                cache.size += change
                facts += [held if change > 0 else gone] * min(abs(change), len(hashes) - known - len(facts))
            cache.record_each(dict(zip(hashes[known:], facts, strict=False)))
            known += len(facts)

    def _enter_store_plan(self, event: StorePlan) -> None:
        cache, keys = self._store(event.connector_id), self._keys(event)
        if not keys:
            return
        if event.count == 0:
            full = cache.group(next((n for n, group in enumerate(groups_of(event.groups)) if group.kind == FULL), 0))
            full.record(keys, self._unstored(full, keys, BlockState.FULL, event))
        elif cache.reports_changes:
            return
        elif event.transfer_id is None:
            cache.record(keys, self._fact(BlockState.HELD, event, event.request or ""))
        else:
            cache.record(keys, self._fact(BlockState.STORING, event, event.request or ""))
            self._stored[event.connector_id, event.transfer_id] = keys

    def _keys(self, event: StorePlan) -> list[Key]:
        """The keys of the chunks that a plan stores, or cannot store because of a full store; if it names tokens, from the
        request's chain."""
        if event.chunk_keys is not None:
            return list(map(_key, event.chunk_keys))
        request = self._requests.get(event.request or "")
        if request is None or event.start is None or not request.block_size or not request.chain.is_whole:
            return []
        chunk = event.chunk_size or request.block_size
        if chunk % request.block_size:
            return []
        per, first = chunk // request.block_size, event.start // chunk
        last = (event.start + event.count) // chunk if event.count else first + 1
        return list(request.chain.hashes[(first + 1) * per - 1 : last * per : per])

    def _fact(self, state: BlockState, event: Event, by: str = "", group: int | None = None) -> BlockChange:
        self._number += 1
        return BlockChange(state, self._number, event.end_ns, event.span_id, by, group=group)

    def _unstored(self, cache: CacheModel, keys: Sequence[Key], state: BlockState, event: Event) -> BlockChange:
        """A fact about a chunk that was not stored, with its previous fact."""
        before = cache.last(keys[0]) if keys else None
        while before is not None and before.state in UNSTORED:
            before = before.before
        return replace(self._fact(state, event), before=before)

    def _enter_transfer_end(self, event: TransferEnd) -> None:
        keys = self._stored.pop(event.job, None)
        if not keys:
            return
        cache = self._store(event.connector_id)
        if event.failed:
            cache.record(keys, self._unstored(cache, keys, BlockState.FAILED, event))
        else:
            cache.record(keys, self._fact(BlockState.HELD, event, event.request or ""))

    def _enter_evict(self, event: Evict) -> None:
        if event.chunk_key is None:
            return
        cache = self._store(event.connector_id)
        if event.pool_tier:
            cache.name = event.pool_tier
        if not cache.reports_changes:
            cache.record((_key(event.chunk_key),), self._fact(BlockState.EVICTED, event, event.pushed_by or ""))

    def _enter_reset(self, event: Reset) -> None:
        cache = self._store(event.connector_id)
        if event.succeeded is not False and not cache.reports_changes:
            cache.clear(self._fact(BlockState.RESET, event))


def _key(recorded: str) -> Key:
    """A chunk's key in events: the hash of its last block, if the connector uses that as its key."""
    if len(recorded) == 2 * HASH_BYTES:
        try:
            return bytes.fromhex(recorded)
        except ValueError:
            pass
    return recorded


_ALLOC = Kind.ALLOC
_AT_ANY_MOMENT = (Kind.PREFIX_CACHE, Kind.HEARTBEAT)
KINDS_OF_ANY_ROLE = (Kind.EVICT, Kind.HEARTBEAT, UNFAMILIAR)
"""Kinds of events that not only the scheduler's side reports."""
_ENTER = handlers(Causes)
