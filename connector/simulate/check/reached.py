"""What a run has reached: how often the connector and its scheduler were in each of the states that `points` names.

It follows no request itself. It asks the ledger, event by event, what was known before the event: which answers wait, which
loads and stores are open, who is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kvtrail.connector.simulate.run import Played
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.cache_groups import CHUNKED, MAMBA, NULL_BLOCK, SLIDING, groups_of
from kvtrail.tracer.events.events import (
    Alloc,
    CacheReset,
    Event,
    Evict,
    Free,
    Handoff,
    Job,
    Lease,
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
    Sent,
    Side,
    Store,
    StorePlan,
    TransferEnd,
    Xfer,
    XferOp,
    XferState,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import loaded_into
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.facts import Offer

MANY = 1000
"""Requests of one run: enough to show what grows with their number."""
ABORTED = "aborted"
PLAIN = "plain"


class Moment(NamedTuple):
    """What one event has reached.

    Attributes:
        request: the engine and the request that it is about; None where it is about none.
        points: names of points, the most general first; never empty.
        loads, stores: transfers that were open before it, of all requests; of stores, ended requests with kept blocks
            count as well.
        preempted: requests that were preempted and had not run again.
        epoch: how often the request had been preempted.
        was_reset: whether the connector's cache had been reset.
        was_full: whether its store had evicted something.
        step: the scheduling step, as far as it is known.
    """

    request: tuple[str, str] | None
    points: tuple[str, ...]
    loads: int
    stores: int
    preempted: int
    epoch: int
    was_reset: bool
    was_full: bool
    step: int


def reached(played: Played, known: Iterable[Moment] | None = None) -> Counter[str]:
    """How often a run has reached each point; those that it has not are missing. `known` are its moments, where the caller
    has them."""
    points = Counter(point for moment in (moments(played) if known is None else known) for point in moment.points)
    points.update(_of_the_whole(played, points))
    return +points


def moments(played: Played) -> Iterator[Moment]:
    """What each event of a run has reached, in order."""
    return _Run(played).moments()


def _of_the_whole(played: Played, points: Counter[str]) -> Counter[str]:
    """What the run has reached as a whole, beside what its events have."""
    ends = points["end/finished"] + points["end/aborted"]
    saw = any(
        isinstance(e, LoadPlan | StorePlan) or (isinstance(e, Lookup) and e.matched is not None) for e in played.events
    )
    resets = {event.scheduler_step for event in played.events if isinstance(event, Reset)}
    local = {event.scheduler_step for event in played.events if isinstance(event, CacheReset)}
    stored, removed, found = played.kv_events
    return Counter({
        "end/all": int(ends > 0 and played.error is None and not played.unfinished),
        "end/many": int(ends >= MANY),
        "reset/local-only": len(local - resets),
        "bytes/compared": played.blocks_compared,
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
        self._was_reset = self._was_full = False
        self._looked_up: set[tuple[str, str | None]] = set()
        """The requests that were looked up since the last reset."""
        self._takes: set[tuple[str, str | None]] = set()
        """The requests that are to read another engine's blocks."""
        self._loaded: dict[tuple[str, int], str | None] = {}
        """Who has loaded a block, while it has not been given out again."""
        self._computes: tuple[int | None, dict[int, str | None]] = None, {}
        """The last step that computed several tokens of a request, and the blocks that it fills, each with its request."""
        self._cache_reset_step: int | None = None
        """The first step after the last reset of vLLM's cache."""
        self._begun: dict[tuple[str, Job], int] = {}
        """The step in which a numbered store was planned."""
        self._step = 0

    def moments(self) -> Iterator[Moment]:
        for event in self._events:
            request = (event.engine, event.request) if event.request is not None else None
            enter = _ENTER.get(event.kind)
            points: list[str] = []
            if enter is not None and self._is_of_tested(event):
                known = None if request is None else self._detector.accounts.get(request)
                self._account = Account(event.engine, event.request or "") if known is None else known
                self._engine = self._detector.engine(event.recorder)
                self._step = getattr(event, "scheduler_step", None) or self._step
                open_before = self._open()
                points += enter(self, event)
            self._detector.feed((event,))
            if isinstance(event, Schedule):
                points += self._shares(event)
            if points:
                yield Moment(
                    request, tuple(points), *open_before, event.epoch, self._was_reset, self._was_full, self._step
                )

    def _is_of_tested(self, event: Event) -> bool:
        """A request begins and ends for all children of a MultiConnector at once."""
        return self._tested in (None, event.connector_id) or isinstance(event, RequestStart | RequestEnd)

    def _open(self) -> tuple[int, int, int]:
        engine = self._engine
        stores = len(engine.kept) + sum(isinstance(plan, StorePlan) for plan in engine.jobs.values())
        return len(engine.loads), stores, len(self._preempted)

    # Lookups and allocations.

    def _offer(self, event: Lookup | Alloc) -> Offer | None:
        """The connector's answer that waits for an allocation."""
        offer = self._account.evidence.offers.get(event.connector_id)
        return offer if offer is not None and offer.alloc is None else None

    def _enter_lookup(self, event: Lookup) -> Iterable[str]:
        if event.error is not None:
            yield "lookup/raised"
            return
        key, answer, offer = (event.engine, event.request), event.answer, self._offer(event)
        before = None if offer is None else offer.lookup.answer
        yield "lookup/deferred" if answer is None else "lookup/hit" if answer > 0 else "lookup/miss"
        if event.epoch:
            yield "lookup/after-preemption"
        if self._was_reset and key not in self._looked_up:
            yield "lookup/after-reset"
        self._looked_up.add(key)
        if self._was_full:
            yield "lookup/after-eviction"
        if answer is None:
            return
        if offer is not None and offer.deferred_since_ns is not None:
            yield "lookup/answered-later"
        if before is not None:
            yield "lookup/again"
            if before != answer:
                yield "lookup/other-answer"
        identity = self._account.identity or PLAIN
        if self._hit - {identity}:
            yield "lookup/other-identity"
        if answer > 0:
            yield from self._found(event, answer, hit_before=bool(before))
            self._hit.add(identity)

    def _found(self, event: Lookup, answer: int, *, hit_before: bool) -> Iterable[str]:
        end = event.computed + answer
        yield "lookup/async" if event.is_async else "lookup/within-step"
        if event.computed:
            yield "lookup/beyond-computed"
        if end >= event.total - 1:
            yield "lookup/to-the-end"
            if not event.is_async:
                yield "lookup/to-the-end-within-step"
        elif end + (event.block_size or 0) < event.total:
            yield "lookup/part"
        if hit_before:
            yield "lookup/hit-again"
        if event.epoch:
            yield "lookup/hit-after-preemption"
        if self._account.identity not in (None, PLAIN):
            yield "lookup/with-identity"
        if self._account.prompt is not None and end > self._account.prompt:
            yield "lookup/output"
        if self._was_full:
            yield "lookup/in-full-store"
        if self._was_reset:
            yield "reset/found-again"
        if self._has_ranks:
            yield "ranks/hit"
        yield from _of_groups(event)

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
        if offer.lookup.computed + event.allocated >= offer.lookup.total - 1:
            yield "alloc/full-hit"
        if offer.lookup.is_async:
            yield "load/open"
        if self._has_ranks:
            yield "ranks/load"
        if _has_groups(event):
            yield "groups/alloc"
        if event.blocks_ids is not None:
            self._loaded.update({(event.engine, block): event.request for block in loaded_into(event)})

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
        """After the step: whether the request runs on blocks that another one has loaded, or computes in the same step."""
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
        others = (self._loaded.get((event.engine, block), event.request) for block in ids[: event.computed // size])
        if any(other != event.request for other in others):
            yield "step/shared-blocks"
        for block in ids[event.computed // size :]:
            self._loaded.pop((event.engine, block), None)

    def _enter_preempt(self, event: Preempt) -> Iterable[str]:
        account, evidence = self._account, self._account.evidence
        if evidence.preempted == event.epoch:
            return  # another child of a MultiConnector has reported it
        self._preempted.add((event.engine, event.request))
        yield "preempt/any"
        if event.scheduler_step is not None and event.scheduler_step == self._cache_reset_step:
            yield "reset/preempted"
        computed = account.computed if event.computed is None else event.computed
        if computed is not None and account.prompt is not None:
            yield "preempt/in-prefill" if computed < account.prompt else "preempt/in-decode"
        if event.epoch > 1:
            yield "preempt/again"
        if any(alloc.allocated for alloc in evidence.allocs.values()):
            yield "preempt/after-load"
        if self._engine.loads.keys() - {event.request}:
            yield "load/open-at-preemption"
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
        yield from self._given_back(event)
        alloc, takes = self._engine.loads.get(event.request or ""), (event.engine, event.request) in self._takes
        if event.failed:
            yield from self._failed("load/failed-between-steps")
        elif alloc is not None:
            yield "load/received"
            if self._has_ranks:
                yield "ranks/received"
        if alloc is None:
            return
        if self._account.ended_ns is not None:
            yield "load/after-end"
        if _passed(alloc.scheduler_step, event.scheduler_step) > 1:
            yield "load/late"
        if next(iter(self._engine.loads)) != event.request:
            yield "load/out-of-order"
        if takes and not event.failed:
            yield "handoff/received"

    def _enter_load_error(self, event: LoadError) -> Iterable[str]:
        is_open = event.request in self._engine.loads
        yield from self._failed("load/failed-between-steps" if is_open else "load/failed-within-step")
        for alloc in self._account.evidence.allocs.values():
            into = loaded_into(alloc) if alloc.allocated and alloc.blocks_ids is not None else []
            if into and into[0] not in event.blocks_ids:
                yield "load/failed-in-part"

    def _failed(self, how: str) -> Iterable[str]:
        account = self._account
        yield "load/failed"
        yield how
        lookups = account.evidence.recent_lookups
        if lookups and lookups[-1].computed:
            yield "load/failed-behind-computed"
        if self._has_ranks:
            yield "ranks/failed"
        if (account.engine, account.request) in self._takes:
            yield "handoff/failed"

    def _enter_store_plan(self, event: StorePlan) -> Iterable[str]:
        prompt = self._account.prompt
        if event.chunk_present:
            yield "store/present"
            return
        if event.count:
            yield "store/planned"
        if event.drafted:
            yield "store/with-drafts"
        if prompt is not None and event.start is not None and event.start + event.count > prompt:
            yield "store/of-output"
        if prompt is not None and event.computed is not None and event.computed + (event.scheduled or 0) < prompt:
            yield "store/chunked"
        if self._account.evidence.failed_ever:
            yield "load/stored-after-failure"
        if _has_groups(event):
            yield "groups/store-planned"
        if event.job is not None:
            self._begun[event.engine, event.job] = self._step

    def _enter_store(self, event: Store) -> Iterable[str]:
        yield "store/ended"

    def _enter_transfer_end(self, event: TransferEnd) -> Iterable[str]:
        plan = self._engine.jobs.get(event.job)
        if isinstance(plan, LoadPlan):
            yield "load/numbered-end"
        elif isinstance(plan, StorePlan):
            yield "store/ended"
            if _passed(self._begun.pop((event.engine, event.job), None), event.scheduler_step) > 1:
                yield "store/open"

    def _enter_evict(self, event: Evict) -> Iterable[str]:
        self._was_full = True
        yield "store/evicted"

    def _enter_prefix_cache(self, event: PrefixCache) -> Iterable[str]:
        if event.pool_tier is None:
            return
        if any(change > 0 for change in event.cache_changes):
            yield "probe/stored"
        if any(change <= 0 for change in event.cache_changes):
            self._was_full = self._was_full or any(change < 0 for change in event.cache_changes)
            yield "probe/removed"

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
            yield "end/aborted"
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
            if evidence.failed_ever:
                yield "end/aborted-after-failure"
            if event.request in self._engine.loads:
                yield "load/open-at-abort"
            if key in self._takes and evidence.received is None:
                yield "handoff/aborted"
            if event.handoff:
                yield "handoff/giver-aborted"
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

    def _enter_sent(self, event: Sent) -> Iterable[str]:
        yield from self._given_back(event)

    def _enter_free(self, event: Free) -> Iterable[str]:
        yield from self._given_back(event)
        if event.lease_expired:
            yield "handoff/lease-expired"

    def _given_back(self, event: Sent | Free | Received) -> Iterable[str]:
        kept = self._engine.kept.get(event.request or "")
        if kept is not None:
            yield "end/blocks-given-back"
            if kept.handoff:
                yield "handoff/given-back"

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
        if self._engine.kept or any(isinstance(plan, StorePlan) for plan in self._engine.jobs.values()):
            yield "store/open-at-reset"
        if event.succeeded is False:
            yield "reset/refused"
            return
        if self._hit:
            yield "lookup/hit-before-reset"
        self._was_reset, self._was_full = True, False
        self._looked_up.clear()
        self._hit.clear()

    # Two engines.

    def _enter_handoff(self, event: Handoff) -> Iterable[str]:
        if event.handoff_side == Side.GIVES:
            yield "handoff/kept"
        else:
            self._takes.add((event.engine, event.request))
            yield "handoff/taken"
        if self._has_ranks:
            yield "handoff/ranks"

    def _enter_xfer(self, event: Xfer) -> Iterable[str]:
        if event.xfer_state == XferState.DONE:
            is_read = event.xfer_op == XferOp.READ
            yield "handoff/read" if is_read else "handoff/written"
            yield "handoff/pull" if is_read else "handoff/push"
        elif event.xfer_state == XferState.FAILED:
            yield "handoff/failed"

    def _enter_lease(self, event: Lease) -> Iterable[str]:
        yield "handoff/lease-extended"

    def _enter_read(self, event: Read) -> Iterable[str]:
        yield "handoff/read"


_ENTER: dict[str, Callable[..., Iterable[str]]] = handlers(_Run)  # type: ignore[assignment]


def _passed(since: int | None, until: int | None) -> int:
    """Steps from one event to another; 0 where that is not known."""
    return 0 if since is None or until is None else until - since


def _has_groups(event: Event) -> bool:
    return len(groups_of(event.groups)) > 1


def _of_groups(event: Lookup) -> Iterable[str]:
    groups = groups_of(event.groups)
    if len(groups) > 1:
        yield "groups/hit"
    kinds = {group.kind for group in groups}
    named = ((SLIDING, "groups/sliding-window"), (MAMBA, "groups/state"), (CHUNKED, "groups/chunked"))
    yield from (point for kind, point in named if kind in kinds)
    if len({group.block_size for group in groups}) > 1:
        yield "groups/block-sizes"
