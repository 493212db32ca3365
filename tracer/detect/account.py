"""The token account of one request, rebuilt from events alone.

It is an auditor's: it derives from the calls what scheduler and connector must each believe, and takes nobody's
word for it. It is pure, holds no clock and does no I/O. It expects the events of a request in their order; `detect`
sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kvtrail.tracer.detect.books import Books, grown
from kvtrail.tracer.detect.phases import Phases
from kvtrail.tracer.model.events import (
    Alloc,
    Event,
    Free,
    Load,
    LoadError,
    Lock,
    Lookup,
    Plan,
    Preempt,
    RankLookup,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Sent,
    Stats,
    Store,
    StorePlan,
    TransferEnd,
    Unlock,
)
from kvtrail.tracer.model.semconv import Kind

SCHEDULER = "scheduler"


@dataclass(slots=True)
class Account:
    """What is known of one request at one moment. Counts are tokens unless they say otherwise; None is 'not yet'."""

    engine: str
    request: str
    external: str = ""
    trace_id: str = ""
    connector: str = ""
    status: str = "queued"
    """queued | admitted | loading | running | preempted | finished | failed | abandoned: `failed` when a call about it
    raised, `abandoned` when its engine's recorder said goodbye before the request had ended."""
    recorder: str = ""
    """The recorder on the scheduler's side."""
    epoch: int = 0
    """How often the request has been preempted."""
    total: int | None = None
    prompt: int | None = None
    """Tokens when the request began."""
    computed: int | None = None
    """Computed in vLLM, as the last call about it said."""
    matched: int | None = None
    returned: int | None = None
    allocated: int | None = None
    scheduled: int | None = None
    begun: int | None = None
    """First scheduled position after the admission."""
    rejected: int = 0
    """Speculative tokens that were rejected, in all epochs; where every step is told."""
    loaded: int = 0
    """Copied from the connector's store, over all epochs and ranks of one recorder."""
    stored: int = 0
    """Copied into the connector's store."""
    loaded_by_rank: dict[int, int] = field(default_factory=dict)
    stored_by_rank: dict[int, int] = field(default_factory=dict)
    stored_ranges: list[tuple[int, int]] = field(default_factory=list)
    """What the epoch's plans store or found stored, from and to, merged and in order."""
    longest_match: int = 0
    """The longest prefix that any of its lookups matched."""
    lookups: int = 0
    """Lookup calls, in all epochs."""
    refused: int = 0
    """Lookup answers that the guard replaced."""
    started_ns: int = 0
    last_ns: int = 0
    ended_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    complete: bool = True
    """False once an event of this request is known to be missing."""
    books: Books = field(default_factory=Books)
    phases: Phases = field(default_factory=Phases)
    """For whoever draws the request, and enters its events there."""

    def last_lookup(self, connector_id: str) -> Lookup | None:
        """The latest lookup that this connector answered in the current epoch. A MultiConnector's children share the
        request's account, and each is asked and told on its own."""
        for lookup in reversed(self.books.recent_lookups):
            if lookup.epoch == self.epoch and lookup.connector_id == connector_id:
                return lookup
        return None

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON-ready data, without its books and phases."""
        data = {name: getattr(self, name) for name in _NAMES}
        for name in ("loaded_by_rank", "stored_by_rank"):
            data[name] = dict(data[name])
        return data

    def apply(self, event: Event) -> None:
        """Enter one event, the next in the request's order."""
        if event.end_ns > self.last_ns:
            self.last_ns = event.end_ns
        if not self.started_ns:
            self.started_ns = event.start_ns
        if event.connector:
            self.connector = event.connector
        if not self.external:
            self.external = event.external or ""
        if event.role == SCHEDULER:
            self.recorder, self.trace_id = event.recorder, event.trace_id
            if event.epoch > self.epoch:
                self._begin_epoch(event.epoch)
        elif not self.trace_id:  # a worker may not know the caller's trace
            self.trace_id = event.trace_id
        if event.error is not None:
            self.error = event.error
            self.status = "failed"
        if enter := _ENTER.get(event.kind):
            enter(self, event)

    def abandon(self, at_ns: int) -> None:
        """The engine has ended, and the request with it."""
        self.ended_ns = at_ns
        if self.status != "failed":
            self.status = "abandoned"

    def _enter_start(self, event: RequestStart) -> None:
        self.total = self.prompt = event.total

    def _enter_end(self, event: RequestEnd) -> None:
        self.status, self.outcome, self.ended_ns = "finished", event.outcome, event.end_ns
        self.total = event.total or self.total
        if event.free_delayed:
            self.books.end = event

    def _enter_lookup(self, event: Lookup) -> None:
        self.lookups += 1
        self.refused += event.refused is not None
        self.total, self.computed = event.total, event.computed
        self.matched, self.returned = event.matched, event.returned
        if event.matched is not None and event.matched > self.longest_match:
            self.longest_match = event.matched
        books = self.books
        books.connectors.add(event.connector_id)
        books.repeated_hits += bool(event.returned)
        books.rank_lookups.clear()
        recent = books.recent_lookups
        if recent and _same(recent[-1], event):
            recent.pop()
        recent.append(event)

    def _enter_rank_lookup(self, event: RankLookup) -> None:
        self.books.rank_lookups.append(event)

    def _enter_alloc(self, event: Alloc) -> None:
        books = self.books
        self.allocated = event.allocated
        self.total = event.total or self.total
        if event.blocks_ids is not None:
            books.blocks = list(event.blocks_ids)
            books.has_groups = books.has_groups or (event.blocks_count or 0) > len(event.blocks_ids)
        # A second, empty allocation follows an asynchronous load, and does not count.
        if event.allocated or event.connector_id not in books.allocs:
            books.allocs[event.connector_id] = event
        if event.error is None:
            last = self.last_lookup(event.connector_id)
            is_async = bool(event.allocated) and last is not None and last.is_async
            self.status = "loading" if is_async else "admitted"
            if is_async:
                books.loading = event
                books.received_by.clear()

    def _enter_schedule(self, event: Schedule) -> None:
        books = self.books
        last = books.schedule
        if last is None:
            self.begun = event.computed
        elif last.drafted:
            self.rejected += min(last.drafted, max(0, last.computed + last.scheduled - event.computed))
        self.computed, self.scheduled = event.computed, event.scheduled
        self.status = "running"
        if event.blocks_ids or (last is None and event.blocks_ids is not None):  # most steps add none
            books.blocks = grown(None if last is None else books.blocks, event.blocks_ids)
        books.schedule, books.short = event, None

    def _enter_preempt(self, event: Preempt) -> None:
        self.status = "preempted"

    def _enter_load(self, event: Load) -> None:
        self.loaded += event.count
        self.loaded_by_rank[event.rank] = self.loaded_by_rank.get(event.rank, 0) + event.count
        if event.expected is not None and event.count < event.expected:
            self.books.short = event

    def _enter_load_error(self, event: LoadError) -> None:
        self.books.short, self.books.load_failed = None, True

    def _enter_store(self, event: Store) -> None:
        self.stored += event.count
        self.stored_by_rank[event.rank] = self.stored_by_rank.get(event.rank, 0) + event.count
        if event.role == SCHEDULER:  # of a log; workers' stores are told by the plan already, and by every rank again
            self._extend(event)

    def _enter_store_plan(self, event: StorePlan) -> None:
        self._extend(event)
        self._open_job(event)

    def _extend(self, event: Store | StorePlan) -> None:
        if event.start is not None:
            end = event.start + event.count
            if end > self.books.stored_end:
                self.books.stored_end = end
            self.books.store = event
            self.stored_ranges = merged(self.stored_ranges, event.start, end)

    def _open_job(self, event: Plan) -> None:
        if event.transfer_id is not None:
            self.books.jobs[event.transfer_id] = event

    def _enter_transfer_end(self, event: TransferEnd) -> None:
        self.books.jobs.pop(event.transfer_id, None)
        self.books.ended_jobs.add(event.transfer_id)

    def _enter_received(self, event: Received) -> None:
        self.status = "admitted"
        books = self.books
        books.loading, books.received = None, event
        books.received_by.add(event.connector_id)
        if self.ended_ns is not None:
            books.end = None  # of an ended request, vLLM frees the blocks at either report
        if event.failed:
            books.short, books.load_failed = None, True

    def _enter_sent(self, event: Sent) -> None:
        self.books.sent, self.books.end = event, None
        self.books.sent_by.add(event.connector_id)

    def _enter_lock(self, event: Lock) -> None:
        self.books.locks += event.locks
        self.books.locked_ever += event.locks
        self.books.lock = event

    def _enter_unlock(self, event: Unlock) -> None:
        self.books.locks -= event.locks
        if self.books.locks <= 0:
            self.books.lock = None

    def _enter_free(self, event: Free) -> None:
        self.books.freed = self.books.freed or event
        self.books.end = None

    def _enter_stats(self, event: Stats) -> None:
        self.books.stats = event

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.computed = self.matched = self.returned = self.allocated = self.scheduled = self.begun = None
        self.stored_ranges = []
        self.books.begin_epoch()


_NAMES = [f.name for f in fields(Account) if f.name not in ("books", "phases")]
_ENTER: dict[Kind, Callable[[Account, Any], None]] = {
    Kind.REQUEST_START: Account._enter_start,
    Kind.REQUEST: Account._enter_end,
    Kind.LOOKUP: Account._enter_lookup,
    Kind.RANK_LOOKUP: Account._enter_rank_lookup,
    Kind.ALLOC: Account._enter_alloc,
    Kind.SCHEDULE: Account._enter_schedule,
    Kind.PREEMPT: Account._enter_preempt,
    Kind.LOAD: Account._enter_load,
    Kind.LOAD_ERROR: Account._enter_load_error,
    Kind.LOAD_PLAN: Account._open_job,
    Kind.STORE: Account._enter_store,
    Kind.STORE_PLAN: Account._enter_store_plan,
    Kind.TRANSFER_END: Account._enter_transfer_end,
    Kind.RECEIVED: Account._enter_received,
    Kind.SENT: Account._enter_sent,
    Kind.LOCK: Account._enter_lock,
    Kind.UNLOCK: Account._enter_unlock,
    Kind.STATS: Account._enter_stats,
    Kind.FREE: Account._enter_free,
}


def merged(ranges: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of tokens, in order and apart from each other, with one more among them."""
    if not ranges or ranges[-1][1] < start:
        return [*ranges, (start, end)]
    if ranges[-1][0] <= start:  # nearly always it goes on where the last one ended
        return [*ranges[:-1], (ranges[-1][0], max(ranges[-1][1], end))]
    apart = [(a, b) for a, b in ranges if b < start or a > end]
    touching = [(a, b) for a, b in ranges if not (b < start or a > end)]
    joined = (min([start, *(a for a, _ in touching)]), max([end, *(b for _, b in touching)]))
    return sorted([*apart, joined])


def _same(one: Lookup, other: Lookup) -> bool:
    """Whether two lookups have the same numbers, in the same epoch, from the same connector."""
    return (
        one.computed == other.computed
        and one.returned == other.returned
        and one.total == other.total
        and one.matched == other.matched
        and one.epoch == other.epoch
        and one.connector_id == other.connector_id
        and one.cached == other.cached
        and one.is_async == other.is_async
        and one.refused == other.refused
    )
