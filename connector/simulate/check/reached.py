"""What a run has reached: how often the connector and its scheduler were in each of the states that `points` names.

It follows no request itself. It asks the ledger, event by event, what was known before the event: which answers wait, which
loads and stores are open, who is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

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

MANY = 1000
"""Requests of one run: enough to show what grows with their number."""
ABORTED = "aborted"
PLAIN = "plain"


def reached(played: Played) -> Counter[str]:
    """How often a run has reached each point; those that it has not are missing."""
    points = Counter(_Run(played).points())
    points.update(_of_the_whole(played))
    return +points


def _of_the_whole(played: Played) -> Counter[str]:
    """What the run has reached as a whole, beside what its events have."""
    ends = sum(isinstance(event, RequestEnd) for event in played.events)
    saw = any(
        isinstance(e, LoadPlan | StorePlan) or (isinstance(e, Lookup) and e.matched is not None) for e in played.events
    )
    stored, removed, found = played.kv_events
    return Counter({
        "end/all": int(ends > 0 and played.error is None and not played.unfinished),
        "end/many": int(ends >= MANY),
        "bytes/loads": played.loads_read if played.loads_copied else 0,
        "events/stored": stored,
        "events/removed": removed,
        "events/found": found,
        "probe/seen": int(played.unprobed is None and saw),
    })  # fmt: skip


class _Run:
    """Goes through the events of a run, with the ledger one event behind."""

    def __init__(self, played: Played) -> None:
        self._events = played.events
        self._tested = played.tested
        self._has_ranks = played.ranks > 1
        self._unprobed = played.unprobed is not None
        self._detector = Detector(rules=())
        self._account = Account("", "")
        """Of the event's request, as it was before the event."""
        self._engine = Engine()
        """Of the event's recorder, as it was before the event."""
        self._preempted: set[tuple[str, str | None]] = set()
        self._hit: set[str] = set()
        """The identities for which tokens were found."""
        self._was_full = False
        self._takes: set[tuple[str, str | None]] = set()
        """The requests that are to read another engine's blocks."""
        self._computes: tuple[int | None, dict[int, str | None]] = None, {}
        """The last step that computed several tokens of a request, and the blocks that it fills, each with its request."""
        self._cache_reset_step: int | None = None
        """The first step after the last reset of vLLM's cache."""

    def points(self) -> Iterator[str]:
        """What its events have reached, in order."""
        for event in self._events:
            enter = _ENTER.get(event.kind)
            if enter is not None and self._is_of_tested(event):
                known = None if event.request is None else self._detector.accounts.get((event.engine, event.request))
                self._account = Account(event.engine, event.request or "") if known is None else known
                self._engine = self._detector.engine(event.recorder)
                yield from enter(self, event)
            self._detector.feed((event,))
            if isinstance(event, Schedule):
                yield from self._shares(event)

    def _is_of_tested(self, event: Event) -> bool:
        """A request begins and ends for all children of a MultiConnector at once."""
        return self._tested in (None, event.connector_id) or isinstance(event, RequestStart | RequestEnd)

    # Lookups and allocations.

    def _offer(self, event: Lookup | Alloc) -> Offer | None:
        """The connector's answer that waits for an allocation."""
        offer = self._account.evidence.offers.get(event.connector_id)
        return offer if offer is not None and offer.alloc is None else None

    def _enter_lookup(self, event: Lookup) -> Iterable[str]:
        if event.error is not None:
            return
        answer, offer = event.answer, self._offer(event)
        if self._was_full:
            yield "lookup/after-eviction"
        if answer is None:
            yield "lookup/deferred"
            return
        if offer is not None and offer.deferred_since_ns is not None:
            yield "lookup/answered-later"
        identity = self._account.identity or PLAIN
        if self._hit - {identity}:
            yield "lookup/other-identity"
        if answer > 0:
            yield from self._found(event, answer, hit_before=bool(offer is not None and offer.lookup.answer))
            self._hit.add(identity)

    def _found(self, event: Lookup, answer: int, *, hit_before: bool) -> Iterable[str]:
        yield "lookup/hit"
        if event.is_async:
            yield "lookup/async"
        elif event.computed + answer >= event.total - 1:
            yield "lookup/to-the-end-within-step"
        if event.computed:
            yield "lookup/beyond-computed"
        if hit_before:
            yield "lookup/hit-again"
        if event.epoch:
            yield "lookup/hit-after-preemption"
        if self._has_ranks:
            yield "ranks/hit"
        groups = groups_of(event.groups)
        if len(groups) > 1:
            yield "groups/hit"
        if any(group.kind == MAMBA for group in groups):
            yield "groups/state"

    def _enter_rank_lookup(self, event: RankLookup) -> Iterable[str]:
        if self._account.evidence.rank_lookups:
            yield "ranks/answers"

    def _enter_alloc(self, event: Alloc) -> Iterable[str]:
        offer = self._offer(event)
        if event.error is not None or offer is None:
            return
        if not event.allocated:
            if offer.lookup.answer:
                yield "alloc/answer-discarded"
            return
        yield "alloc/external"
        if self._account.evidence.repeated_hits.get(event.connector_id, 0) > 1:
            yield "alloc/after-retry"
        if offer.lookup.is_async:
            yield "load/open"
        if self._has_ranks:
            yield "ranks/load"

    # Steps.

    def _enter_schedule(self, event: Schedule) -> Iterable[str]:
        evidence = self._account.evidence
        self._preempted.discard((event.engine, event.request))
        loaded = [offer for offer in evidence.offers.values() if offer.alloc is not None and offer.alloc.allocated]
        if loaded:
            yield "step/after-load"
            if not all(offer.lookup.is_async for offer in loaded):
                yield "load/within-step"
            if evidence.load_failed:
                yield "load/computed-after-failure"
        elif evidence.load_error is not None:
            yield "load/computed-after-failure"
        if event.resumed:
            yield "preempt/resumed"
        if self._engine.loads.keys() - {event.request}:
            yield "load/beside-others"

    def _shares(self, event: Schedule) -> Iterable[str]:
        """After the step: whether the request computes a block that another one computes in the same step."""
        table, size = self._detector.engine(event.recorder).tables.get(event.request or ""), event.block_size
        if table is None or not size or self._tested not in (None, event.connector_id):
            return
        ids = table.groups[0]
        step, computing = self._computes
        if step != event.scheduler_step:
            computing = {}
        if any(computing.get(block, event.request) != event.request for block in ids):
            yield "store/same-prefix-at-once"
        if event.scheduled > 1:
            fills = ids[event.computed // size : (event.computed + event.scheduled) // size]
            computing.update(dict.fromkeys(fills, event.request))
        computing.pop(NULL_BLOCK, None)
        self._computes = event.scheduler_step, computing

    def _enter_preempt(self, event: Preempt) -> Iterable[str]:
        if self._account.evidence.preempted == event.epoch:
            return  # another child of a MultiConnector has reported it
        self._preempted.add((event.engine, event.request))
        yield "preempt/any"
        if event.scheduler_step is not None and event.scheduler_step == self._cache_reset_step:
            yield "reset/preempted"
        if self._has_open_store():
            yield "store/open-at-preemption"
        if self._unprobed:
            yield "store/unseen-at-preemption"

    # Loads and stores.

    def _enter_load_plan(self, event: LoadPlan) -> Iterable[str]:
        yield "load/planned"
        if event.start is not None:
            yield "load/planned-with-positions"
        if _has_groups(event):
            yield "groups/load-planned"

    def _enter_received(self, event: Received) -> Iterable[str]:
        alloc, takes = self._engine.loads.get(event.request or ""), (event.engine, event.request) in self._takes
        if event.failed:
            yield from self._failed(between_steps=True)
        elif alloc is not None:
            yield "load/received"
        if alloc is None:
            return
        if _passed(alloc.scheduler_step, event.scheduler_step) > 1:
            yield "load/late"
        if next(iter(self._engine.loads)) != event.request:
            yield "load/out-of-order"
        if takes and not event.failed:
            yield "handoff/received"

    def _enter_load_error(self, event: LoadError) -> Iterable[str]:
        return self._failed(between_steps=event.request in self._engine.loads)

    def _failed(self, *, between_steps: bool) -> Iterable[str]:
        yield "load/failed"
        if between_steps:
            yield "load/failed-between-steps"
        if (self._account.engine, self._account.request) in self._takes:
            yield "handoff/failed"

    def _enter_store_plan(self, event: StorePlan) -> Iterable[str]:
        if event.chunk_present:
            return
        if event.count:
            yield "store/planned"
        if event.drafted:
            yield "store/with-drafts"
        if self._account.evidence.failed_ever:
            yield "load/stored-after-failure"
        if _has_groups(event):
            yield "groups/store-planned"

    def _enter_evict(self, event: Evict) -> Iterable[str]:
        self._was_full = True
        yield "store/evicted"

    def _enter_prefix_cache(self, event: PrefixCache) -> Iterable[str]:
        if event.pool_tier is not None and any(change < 0 for change in event.cache_changes):
            self._was_full = True
        return ()

    def _has_open_store(self) -> bool:
        return any(isinstance(plan, StorePlan) for plan in self._account.evidence.jobs.values())

    # Ends and resets.

    def _enter_request_start(self, event: RequestStart) -> Iterable[str]:
        if self._account.ended_ns is not None:
            yield "end/id-again"

    def _enter_request(self, event: RequestEnd) -> Iterable[str]:
        account, evidence, key = self._account, self._account.evidence, (event.engine, event.request)
        was_preempted = key in self._preempted
        self._preempted.discard(key)
        if event.outcome == ABORTED:
            waits = [offer.lookup.answer for offer in evidence.offers.values() if offer.alloc is None]
            if not event.epoch and evidence.schedule is None:
                yield "end/aborted-unscheduled"
            if any(waits):
                yield "end/aborted-matched"
            if None in waits:
                yield "end/aborted-deferred"
            if evidence.schedule is not None:
                yield "end/aborted-running"
            if was_preempted:
                yield "end/aborted-preempted"
            if event.request in self._engine.loads:
                yield "load/open-at-abort"
            if key in self._takes and evidence.received is None:
                yield "handoff/aborted"
        else:
            yield "end/finished"
        if event.free_delayed:
            yield "end/blocks-kept"
        if event.free_delayed or self._has_open_store():
            yield "store/open-at-end"
        if event.handoff and (account.prompt or 0) >= (event.block_size or 1):
            yield "handoff/asked"
        if _has_groups(event):
            yield "groups/end"

    def _enter_cache_reset(self, event: CacheReset) -> Iterable[str]:
        self._cache_reset_step = event.scheduler_step
        return ()

    def _enter_reset(self, event: Reset) -> Iterable[str]:
        yield "reset/connector"
        live = [account for account in self._detector.accounts.values() if account.ended_ns is None]
        if any(account.status == "running" for account in live):
            yield "reset/while-running"
        if any(o.alloc is None and o.lookup.answer for account in live for o in account.evidence.offers.values()):
            yield "reset/while-matched"
        if self._engine.loads:
            yield "load/open-at-reset"
        if event.succeeded is False:
            return
        if self._hit:
            yield "lookup/hit-before-reset"
        self._was_full = False
        self._hit.clear()

    # Two engines.

    def _enter_handoff(self, event: Handoff) -> Iterable[str]:
        if event.handoff_side != Side.GIVES:
            self._takes.add((event.engine, event.request))
            yield "handoff/taken"

    def _enter_xfer(self, event: Xfer) -> Iterable[str]:
        if event.xfer_state == XferState.DONE:
            is_read = event.xfer_op == XferOp.READ
            yield "handoff/read" if is_read else "handoff/written"
            yield "handoff/pull" if is_read else "handoff/push"
        elif event.xfer_state == XferState.FAILED:
            yield "handoff/failed"

    def _enter_read(self, event: Read) -> Iterable[str]:
        yield "handoff/read"


_ENTER: dict[str, Callable[..., Iterable[str]]] = handlers(_Run)  # type: ignore[assignment]


def _passed(since: int | None, until: int | None) -> int:
    """Steps from one event to another; 0 where that is not known."""
    return 0 if since is None or until is None else until - since


def _has_groups(event: Event) -> bool:
    return len(groups_of(event.groups)) > 1
