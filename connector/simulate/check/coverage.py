"""Counts how often a run reached each coverage point: a state in which a requirement is at risk.

It keeps no state of requests. Before each event, it asks the ledger which answers wait, which loads and stores are open, and
which requests are preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvtrail.connector.simulate.run import Played
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.cache_groups import MAMBA, NULL_BLOCK, groups_of
from kvtrail.tracer.events.events import (
    Alloc,
    CacheReset,
    Event,
    Evict,
    Handoff,
    LoadError,
    LoadPlan,
    Lookup,
    Preempt,
    PrefixCache,
    RankLookup,
    Read,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    Side,
    StorePlan,
    Xfer,
    XferOp,
    XferState,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.facts import Offer
from kvtrail.tracer.model.findings import Verdict

POINTS: Mapping[str, str] = {
    # What lookups were answered.
    "lookup/hit": "a lookup found tokens",
    "lookup/deferred": "a lookup was answered 'ask me later'",
    "lookup/answered-later": "a lookup was answered after it had been answered 'ask me later'",
    "lookup/async": "a hit is to be loaded between steps",
    "lookup/beyond-computed": "a hit lies behind tokens that vLLM's own cache had",
    "lookup/to-the-end-within-step": "a hit to be loaded within a step leaves at most the last token to compute",
    "lookup/hit-again": "a request that waits was looked up again, and both lookups found tokens",
    "lookup/hit-after-preemption": "a preempted request was looked up, and tokens were found",
    "lookup/hit-before-reset": "the connector's cache was reset after a lookup had found tokens",
    "lookup/other-identity": "a request was looked up after hits of requests with another cache salt or adapter",
    "lookup/after-eviction": "a lookup followed an eviction from the connector's store",
    # What the scheduler made of the answers.
    "alloc/external": "blocks were allocated for tokens to load",
    "alloc/answer-discarded": "the scheduler admitted a request without the tokens that the lookup had found",
    "alloc/after-retry": "blocks were allocated for an answer that had been given more than once",
    "step/after-load": "a request ran for the first time after its load",
    # Loads.
    "load/planned": "a load was planned",
    "load/within-step": "a request ran in the step in which its tokens are loaded",
    "load/open": "a load between steps began",
    "load/received": "a load between steps ended well",
    "load/late": "a load between steps was open for more than a step",
    "load/out-of-order": "a load between steps ended before one that had begun earlier",
    "load/failed": "a load failed",
    "load/failed-between-steps": "a load between steps failed",
    "load/computed-after-failure": "a request ran after its load had failed",
    "load/stored-after-failure": "a store of a request was planned after its load had failed",
    "load/asked-after-failure": "a prompt was looked up that a step had computed, in part, of a load that had failed",
    "load/open-at-abort": "a request was aborted while its load was open",
    "load/open-at-reset": "the connector's cache was reset while a load was open",
    "load/beside-others": "a request ran while a load of another was open",
    # Stores.
    "store/planned": "a store was planned",
    "store/with-drafts": "a store was planned in a step with speculative tokens",
    "store/open-at-end": "a request ended while a store of it was open, or its blocks were kept",
    "store/open-at-preemption": "a request was preempted while a store of it was open",
    "store/unseen-at-preemption": "a request was preempted, and no probe shows whether a store of it was open",
    "store/evicted": "the connector's store evicted something",
    "store/same-prefix-at-once": "two requests ran in the same step on a block that it computes",
    # Preemptions, ends, ids and resets.
    "preempt/any": "a request was preempted",
    "preempt/resumed": "a preempted request ran again",
    "end/finished": "a request finished",
    "end/aborted-unscheduled": "a request was aborted that had never run",
    "end/aborted-matched": "a request was aborted that waited with a hit",
    "end/aborted-deferred": "a request was aborted after an answer 'ask me later' to its last lookup",
    "end/aborted-running": "a request was aborted that ran",
    "end/aborted-preempted": "a request was aborted that was preempted",
    "end/blocks-kept": "the connector kept the blocks of a request that had ended",
    "end/all": "all requests ended, and nothing raised",
    "end/id-again": "a request came with an id that another one had before",
    "end/many": "a thousand requests ended in one run",
    "reset/connector": "the connector's cache was reset",
    "reset/while-running": "the connector's cache was reset while a request ran",
    "reset/preempted": "a request was preempted by a reset of vLLM's cache",
    "reset/while-matched": "the connector's cache was reset while a request waited with a hit",
    "bytes/loads": "a load was looked at, bit by bit",
    # Several KV cache groups, several ranks.
    "groups/hit": "a lookup found tokens, with several KV cache groups",
    "groups/load-planned": "a load was planned, with several KV cache groups",
    "groups/store-planned": "a store was planned, with several KV cache groups",
    "groups/state": "a lookup found tokens, with a recurrent state",
    "groups/end": "a request ended, with several KV cache groups",
    "ranks/hit": "a lookup found tokens, with several ranks",
    "ranks/load": "blocks were allocated for tokens to load, with several ranks",
    "ranks/answers": "several ranks or groups answered the same lookup",
    # Two engines.
    "handoff/asked": "the caller asked for a request of at least a block to be handed on",
    "handoff/taken": "a request came that is to read another engine's blocks",
    "handoff/received": "a request has received another engine's blocks",
    "handoff/failed": "a request has failed to receive another engine's blocks",
    "handoff/aborted": "a request was aborted that waited for another engine's blocks",
    "handoff/read": "an engine has read another one's blocks",
    "handoff/written": "an engine has written another one's blocks",
    "handoff/pull": "blocks were handed over by the engine that takes",
    "handoff/push": "blocks were handed over by the engine that gives",
    # What the connector says by itself, and what its probe sees.
    "events/stored": "a KV cache event reported a block as stored",
    "events/removed": "a KV cache event reported a block as removed",
    "events/found": "a lookup found tokens, of a connector with KV cache events",
    "probe/seen": "a probe showed what the connector's store holds, or what it plans",
}
"""The coverage points, and what each means in one sentence."""
MANY = 1000
"""Number of requests of one run that shows what grows with their number."""
PLAIN = "plain"
Reached = Mapping[str, object]
"""Points that an event may reach; it has reached those with a true value."""


@dataclass(frozen=True, slots=True)
class RunCoverage:
    """The coverage, the verdicts and the failures of one run of a session.

    Attributes:
        reached: how often each of the points was reached.
        checks: how often each rule gave each verdict on the connector.
        capacity_compared: whether the capacity of a full store was compared with that of a new one.
        failures: the ids of the failures.
    """

    reached: Counter[str]
    checks: Mapping[tuple[str, Verdict], int]
    capacity_compared: bool = False
    failures: frozenset[str] = frozenset()


def reached(played: Played) -> Counter[str]:
    """How often a run has reached each point, without those that it has not reached."""
    points = Counter(_Run(played).points())
    points.update(_of_the_whole(played))
    return +points


def _of_the_whole(played: Played) -> Mapping[str, int]:
    """How often the run as a whole has reached points, besides its single events."""
    ends = sum(isinstance(event, RequestEnd) for event in played.events)
    saw = any(
        isinstance(e, LoadPlan | StorePlan) or (isinstance(e, Lookup) and e.matched is not None) for e in played.events
    )
    stored, removed, found = played.kv_events
    return {
        "end/all": int(ends > 0 and played.error is None and not played.unfinished),
        "end/many": int(ends >= MANY),
        "load/asked-after-failure": played.asked_of_failed,
        "bytes/loads": played.loads_read if played.loads_copied else 0,
        "events/stored": stored,
        "events/removed": removed,
        "events/found": found,
        "probe/seen": int(played.unprobed is None and saw),
    }


class _Run:
    """The events of a run, with a ledger that is one event behind."""

    def __init__(self, played: Played) -> None:
        self._events = played.events
        self._tested = played.tested
        self._has_ranks = played.ranks > 1
        self._unprobed = played.unprobed is not None
        self._detector = Detector(rules=())
        self._account = Account("", "")
        """The account of the event's request, before the event."""
        self._engine = Engine()
        """The state of the event's engine, before the event."""
        self._hit: set[str] = set()
        """The identities (salt, adapter) for which lookups found tokens."""
        self._was_full = False
        self._takes: set[tuple[str, str | None]] = set()
        """The requests that will read another engine's blocks."""
        self._computes: tuple[int | None, dict[int, str | None]] = None, {}
        """The last step that computed several tokens of a request, and its request by block that it fills."""
        self._cache_reset_step: int | None = None
        """The first step after the last reset of vLLM's cache."""

    def points(self) -> Iterator[str]:
        """The points that its events have reached, in order."""
        for event in self._events:
            enter = _ENTER.get(event.kind)
            if enter is not None and self._is_of_tested(event):
                known = None if event.request is None else self._detector.accounts.get((event.engine, event.request))
                self._account = Account(event.engine, event.request or "") if known is None else known
                self._engine = self._detector.engine(event.recorder)
                yield from (point for point, is_reached in enter(self, event).items() if is_reached)
            self._detector.feed((event,))
            if isinstance(event, Schedule) and self._shares(event):
                yield "store/same-prefix-at-once"

    def _is_of_tested(self, event: Event) -> bool:
        """Whether an event concerns the tested connector; requests begin and end for all children of a MultiConnector."""
        return self._tested in (None, event.connector_id) or isinstance(event, RequestStart | RequestEnd)

    # Lookups and allocations.

    def _offer(self, event: Lookup | Alloc) -> Offer | None:
        """The connector's answer that waits for an allocation, if there is one."""
        offer = self._account.evidence.offers.get(event.connector_id)
        return offer if offer is not None and offer.alloc is None else None

    def _enter_lookup(self, event: Lookup) -> Reached:
        if event.error is not None:
            return {}
        answer, offer, groups = event.answer, self._offer(event), groups_of(event.groups)
        identity, hits = self._account.identity or PLAIN, self._hit
        is_hit = answer is not None and answer > 0
        if is_hit:
            self._hit = hits | {identity}
        return {
            "lookup/after-eviction": self._was_full,
            "lookup/deferred": answer is None,
            "lookup/answered-later": answer is not None and offer is not None and offer.deferred_since_ns is not None,
            "lookup/other-identity": answer is not None and hits - {identity},
            "lookup/hit": is_hit,
            "lookup/async": is_hit and event.is_async,
            "lookup/to-the-end-within-step": is_hit
            and not event.is_async
            and event.computed + (answer or 0) >= event.total - 1,
            "lookup/beyond-computed": is_hit and event.computed,
            "lookup/hit-again": is_hit and offer is not None and offer.lookup.answer,
            "lookup/hit-after-preemption": is_hit and event.epoch,
            "ranks/hit": is_hit and self._has_ranks,
            "groups/hit": is_hit and len(groups) > 1,
            "groups/state": is_hit and any(group.kind == MAMBA for group in groups),
        }

    def _enter_rank_lookup(self, event: RankLookup) -> Reached:
        return {"ranks/answers": self._account.evidence.rank_lookups}

    def _enter_alloc(self, event: Alloc) -> Reached:
        offer = self._offer(event)
        if event.error is not None or offer is None:
            return {}
        return {
            "alloc/answer-discarded": not event.allocated and offer.lookup.answer,
            "alloc/external": event.allocated,
            "alloc/after-retry": event.allocated
            and self._account.evidence.repeated_hits.get(event.connector_id, 0) > 1,
            "load/open": event.allocated and offer.lookup.is_async,
            "ranks/load": event.allocated and self._has_ranks,
        }

    # Steps.

    def _enter_schedule(self, event: Schedule) -> Reached:
        evidence = self._account.evidence
        loaded = [offer for offer in evidence.offers.values() if offer.alloc is not None and offer.alloc.allocated]
        return {
            "step/after-load": loaded,
            "load/within-step": not all(offer.lookup.is_async for offer in loaded),
            "load/computed-after-failure": evidence.load_failed if loaded else evidence.load_error is not None,
            "preempt/resumed": event.resumed,
            "load/beside-others": self._engine.loads.keys() - {event.request},
        }

    def _shares(self, event: Schedule) -> bool:
        """After the step: whether the request computes a block that another one computes in the same step."""
        table, size = self._detector.engine(event.recorder).tables.get(event.request or ""), event.block_size
        if table is None or not size or self._tested not in (None, event.connector_id):
            return False
        ids = table.groups[0]
        step, computing = self._computes
        if step != event.scheduler_step:
            computing = {}
        shares = any(computing.get(block, event.request) != event.request for block in ids)
        if event.scheduled > 1:
            fills = ids[event.computed // size : (event.computed + event.scheduled) // size]
            computing.update(dict.fromkeys(fills, event.request))
        computing.pop(NULL_BLOCK, None)
        self._computes = event.scheduler_step, computing
        return shares

    def _enter_preempt(self, event: Preempt) -> Reached:
        if self._account.evidence.preempted == event.epoch:
            return {}  # another child of a MultiConnector has reported it
        step = event.scheduler_step
        return {
            "preempt/any": True,
            "reset/preempted": step is not None and step == self._cache_reset_step,
            "store/open-at-preemption": self._has_open_store(),
            "store/unseen-at-preemption": self._unprobed,
        }

    # Loads and stores.

    def _enter_load_plan(self, event: LoadPlan) -> Reached:
        return {
            "load/planned": True,
            "groups/load-planned": _has_groups(event),
        }

    def _enter_received(self, event: Received) -> Reached:
        alloc = self._engine.loads.get(event.request or "")
        failed = self._failed(between_steps=True) if event.failed else {}
        if alloc is None:
            return failed
        began, ended = alloc.scheduler_step, event.scheduler_step
        return {
            **failed,
            "load/received": not event.failed,
            "load/late": began is not None and ended is not None and ended - began > 1,
            "load/out-of-order": next(iter(self._engine.loads)) != event.request,
            "handoff/received": (event.engine, event.request) in self._takes and not event.failed,
        }

    def _enter_load_error(self, event: LoadError) -> Reached:
        return self._failed(between_steps=event.request in self._engine.loads)

    def _failed(self, *, between_steps: bool) -> Reached:
        return {
            "load/failed": True,
            "load/failed-between-steps": between_steps,
            "handoff/failed": (self._account.engine, self._account.request) in self._takes,
        }

    def _enter_store_plan(self, event: StorePlan) -> Reached:
        if event.chunk_present:
            return {}
        return {
            "store/planned": event.count,
            "store/with-drafts": event.drafted,
            "load/stored-after-failure": self._account.evidence.failed_ever,
            "groups/store-planned": _has_groups(event),
        }

    def _enter_evict(self, event: Evict) -> Reached:
        self._was_full = True
        return {"store/evicted": True}

    def _enter_prefix_cache(self, event: PrefixCache) -> Reached:
        evicts = event.pool_tier is not None and any(change < 0 for change in event.cache_changes)
        self._was_full = self._was_full or evicts
        return {}

    def _has_open_store(self) -> bool:
        return any(isinstance(plan, StorePlan) for plan in self._account.evidence.jobs.values())

    # Ends and resets.

    def _enter_request_start(self, event: RequestStart) -> Reached:
        return {"end/id-again": self._account.ended_ns is not None}

    def _enter_request(self, event: RequestEnd) -> Reached:
        account, evidence, key = self._account, self._account.evidence, (event.engine, event.request)
        aborted = event.outcome == "aborted"
        waits = [offer.lookup.answer for offer in evidence.offers.values() if offer.alloc is None]
        ran = evidence.schedule is not None
        return {
            "end/finished": not aborted,
            "end/aborted-unscheduled": aborted and not event.epoch and not ran,
            "end/aborted-matched": aborted and any(waits),
            "end/aborted-deferred": aborted and None in waits,
            "end/aborted-running": aborted and ran,
            "end/aborted-preempted": aborted and event.epoch and not ran,
            "load/open-at-abort": aborted and event.request in self._engine.loads,
            "handoff/aborted": aborted and key in self._takes and evidence.received is None,
            "end/blocks-kept": event.free_delayed,
            "store/open-at-end": event.free_delayed or self._has_open_store(),
            "handoff/asked": event.handoff and (account.prompt or 0) >= (event.block_size or 1),
            "groups/end": _has_groups(event),
        }

    def _enter_cache_reset(self, event: CacheReset) -> Reached:
        self._cache_reset_step = event.scheduler_step
        return {}

    def _enter_reset(self, event: Reset) -> Reached:
        live = [account for account in self._detector.accounts.values() if account.ended_ns is None]
        hits = self._hit
        if event.succeeded is not False:
            self._was_full, self._hit = False, set()
        return {
            "reset/connector": True,
            "reset/while-running": any(account.status == "running" for account in live),
            "reset/while-matched": any(
                o.alloc is None and o.lookup.answer for account in live for o in account.evidence.offers.values()
            ),
            "load/open-at-reset": self._engine.loads,
            "lookup/hit-before-reset": event.succeeded is not False and hits,
        }

    # Two engines.

    def _enter_handoff(self, event: Handoff) -> Reached:
        takes = event.handoff_side != Side.GIVES
        if takes:
            self._takes.add((event.engine, event.request))
        return {"handoff/taken": takes}

    def _enter_xfer(self, event: Xfer) -> Reached:
        read, written = (
            event.xfer_state == XferState.DONE and (event.xfer_op == XferOp.READ) is is_read
            for is_read in (True, False)
        )
        return {
            "handoff/read": read,
            "handoff/pull": read,
            "handoff/written": written,
            "handoff/push": written,
            "handoff/failed": event.xfer_state == XferState.FAILED,
        }

    def _enter_read(self, event: Read) -> Reached:
        return {"handoff/read": True}


_ENTER: dict[str, Callable[..., Reached]] = handlers(_Run)  # type: ignore[assignment]


def _has_groups(event: Event) -> bool:
    return len(groups_of(event.groups)) > 1
