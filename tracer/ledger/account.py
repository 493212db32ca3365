"""The token account of one request, rebuilt from its events alone, and the events behind its numbers.

Like an auditor's account, it is derived from the recorded calls and trusts neither the scheduler nor the connector. It is
pure: no clock, no I/O. It expects the events of a request in order; the detector sees to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict

from kvtrail.tracer.events.cache_groups import has_states
from kvtrail.tracer.events.events import (
    Alloc,
    BlockCheck,
    CutOff,
    Event,
    Free,
    Job,
    Lease,
    Load,
    LoadError,
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
    Unfamiliar,
    Xfer,
    XferOp,
    XferState,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.events.semconv import CUT_OFF, LOST_CONTACT, Kind
from kvtrail.tracer.ledger.block_table import BlockTable
from kvtrail.tracer.ledger.facts import (
    Admitted,
    Began,
    Breakdown,
    Copied,
    Ended,
    Fact,
    Failed,
    LoadReceived,
    LookedUp,
    Offers,
    Preempted,
    Ran,
    Released,
    Transferred,
)
from kvtrail.tracer.ledger.phases import Phases
from kvtrail.tracer.ledger.rule_states import RuleStates
from kvtrail.tracer.ledger.unfinished_prompt import cut_short
from kvtrail.tracer.model.causes import PEER, Cause
from kvtrail.tracer.model.findings import Unknown

SCHEDULER = "scheduler"
NEVER = 1 << 62
"""Larger than every event number."""
ASKED_AGAIN_NS = 5 * 10**9
"""Maximum counted time between two answers 'ask me later': a busy engine may ask again only after minutes."""
REMEMBERED_LOOKUPS = 16
"""Maximum number of distinct lookups remembered per request as witnesses; repeated ones with the same numbers count as
one."""

REMEMBERED_STEPS = 256
"""Maximum number of multi-token steps remembered per request of a model with recurrent states."""


FULL_OUTPUT = ("stopped", "length_capped")
"""vLLM's finish reasons of a request that has computed its whole prompt."""
PREEMPTED = "preempted"
"""The end of an epoch."""


class Stored(Struct, eq=False):
    """The stored tokens of a request in an epoch, for one connector: the end of the range, and the last plan or store."""

    end: int
    last: Store | StorePlan


class Loaded(NamedTuple):
    """A received load: its allocation, and the computed tokens after it."""

    alloc: Alloc
    end: int


class Evidence(Struct, eq=False):
    """The events behind an account's numbers, which rules use as witnesses. A preemption clears those of its epoch. There may
    be a hundred thousand instances: rarely used collections are frozensets, and the empty one is shared."""

    recent_lookups: list[Lookup] = []
    """Over all epochs."""
    connectors: dict[str, int] = {}
    """How often each connector was asked about the request, over all epochs: the children of a MultiConnector, and the
    MultiConnector itself if it is traced."""
    repeated_hits: dict[str, int] = {}
    """By connector, its lookups with a hit in the epoch, up to its allocation."""
    allocs: dict[str, Alloc] = {}
    """The last allocation of the epoch, by connector."""
    schedule: Schedule | None = None
    """The last step of the epoch."""
    steps: tuple[tuple[int, int], ...] = ()
    """The first and last token of the epoch's latest multi-token steps without speculative tokens; only for models with
    recurrent states."""
    blocks: BlockTable | None = None
    """The block table, as published by allocations and steps; None if they did not."""
    loading: Alloc | None = None
    """The allocation with an asynchronous load that has not been received."""
    received: Received | None = None
    """The last completed asynchronous load of the epoch."""
    loaded: tuple[Loaded, ...] = ()
    """The last received asynchronous load, over all epochs, by connector; empty after a failed load."""
    received_by: frozenset[str] = frozenset()
    """The connectors that recorded the epoch's last report that a load was received: a MultiConnector passes it to all of its
    children."""
    matched: dict[str, int] = {}
    """By connector, the longest prefix that any of its lookups matched, over all epochs."""
    stored: dict[str, Stored] = {}
    """By connector, the stored range in the epoch, as far as the tokens are known."""
    jobs: dict[Job, Plan] = {}
    """Open numbered asynchronous transfers, over all epochs."""
    ran_ahead: bool = False
    """Whether a step has been recorded since that load that was scheduled before the load's error could be reported."""
    short: Load | None = None
    """A load that copied less than expected, without a reported error so far."""
    short_elsewhere: Load | None = None
    """The last such load recorded by another process: it is unknown whether an error of the request preceded it."""
    asked: Lookup | None = None
    """The epoch's first answered lookup, as long as the request has not received blocks since."""
    deferred: Lookup | None = None
    """The first of the current run of 'ask me later' answers from one connector."""
    deferred_last: Lookup | None = None
    """The last answer of that run."""
    deferred_ns: int = 0
    """The duration of that run, in which the connector was asked every few seconds."""
    failed_ever: bool = False
    """Whether a load was reported as failed, in any epoch."""
    load_error: LoadError | None = None
    """The last load error, as long as the request has not run since."""
    load_failed: bool = False
    """Whether a load of the epoch was reported as failed."""
    lease: Lease | None = None
    """When the reading engine last asked to keep the blocks."""
    freed: Free | None = None
    """When the blocks were freed after the end, if that was recorded."""
    failed_read: Xfer | None = None
    """The first failed read of these, unless it was started again since."""
    cut_short: tuple[tuple[int, int | None], ...] = ()
    """The epochs that ended before the whole prompt was computed, each with the number of computed tokens; None if it is
    unknown whether and how far the prompt was computed."""
    rank_lookups: list[RankLookup] = []
    """The ranks' answers since the last lookup."""
    stats: Stats | None = None
    """The last statistics of the epoch."""
    end: RequestEnd | None = None
    """The end event, while the request's blocks are still kept."""
    ended: RequestEnd | None = None
    """The end."""
    number: int = -1
    """The number in the stream of the recorder on the scheduler's side up to which no event after `known_from` is missing."""
    known_from: int = -1
    """The number from which all its events up to the last one are known."""
    sent: Sent | None = None
    """The last completed asynchronous store after the end."""

    offers: Offers = field(default_factory=Offers)
    """The connectors' answers for the next admission, or for an admission that has not run yet."""
    preempted: int = -1
    """The epoch that is known to have ended by a preemption."""
    reached: int = 0
    """Tokens with KV when the request was last preempted, if known."""

    def begin_epoch(self) -> None:
        """Forget evidence that a preemption invalidates."""
        if (last := self.schedule) is not None:
            self.reached = max(self.reached, last.computed + last.scheduled - (last.drafted or 0))
        self.load_failed = False
        self.stored.clear()
        self.schedule = self.loading = self.received = self.stats = self.blocks = self.short = None
        self.asked = self.deferred = self.load_error = None
        self.steps = ()
        self.allocs.clear()
        self.repeated_hits.clear()
        self.received_by = frozenset()
        self.offers.clear()


class Account(Struct, eq=False):
    """The state of one request at one moment. Counts are tokens unless noted otherwise; None means 'not yet'."""

    engine: str
    request: str
    external: str = ""
    trace_id: str = ""
    connector: str = ""
    status: str = "queued"
    """queued | admitted | loading | running | preempted | finished | failed | abandoned: `failed` when a call about it
    raised, `abandoned` when the engine ended, or counts as ended, before the request did; `outcome` says which."""
    recorder: str = ""
    """The recorder on the scheduler's side."""
    epoch: int = 0
    """How often the request has been preempted."""
    total: int | None = None
    prompt: int | None = None
    """Tokens when the request began."""
    identity: str | None = None
    """A digest of its cache salt and adapter; None without both, or until its start is known."""
    computed: int | None = None
    """Tokens computed in vLLM, according to the last call about it."""
    matched: int | None = None
    returned: int | None = None
    allocated: int | None = None
    scheduled: int | None = None
    begun: int | None = None
    """First scheduled position after the admission."""
    rejected: int = 0
    """Rejected speculative tokens, over all epochs; known if every step is recorded."""
    loaded: int = 0
    """Copied from the connector's store, over all epochs and ranks of one recorder."""
    stored: int = 0
    """Copied into the connector's store."""
    loaded_by_rank: dict[int, int] = {}
    stored_by_rank: dict[int, int] = {}
    stored_ranges: list[tuple[int, int]] = []
    """Ranges [from, to) that the epoch's plans store or that were already stored, merged and in order."""
    longest_match: int = 0
    """The longest prefix that any of its lookups matched."""
    lookups: int = 0
    """Lookups of the scheduler, in all epochs: one asks all children of a MultiConnector, and counts once."""
    loads: int = 0
    """How often blocks were allocated for tokens to load."""
    wait_loads: int = 0
    """The loads among these that delayed it: asynchronous ones that it waited for, and copies within a step."""
    waited_ns: int = 0
    """The total time that it waited for KV: for these loads, and after answers 'ask me later'."""
    recomputed: int = 0
    """Tokens that had KV before a preemption and had to be recomputed."""
    refused: int = 0
    """Lookup answers that the guard replaced."""
    looked_at: int = 0
    """Number of comparisons of blocks with the reference of their hashes, over all epochs and ranks."""
    wrong_blocks: int = 0
    """Number of these comparisons with a mismatch."""
    started_ns: int = 0
    last_ns: int = 0
    ended_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    causes: tuple[Breakdown, ...] = ()
    """Its admissions with the parts of its prompt, the latest one of each epoch. Filled by the detector, not by `apply`."""
    recalled: Sequence[Mapping[str, Any]] = ()
    """Admissions with final explanations of an earlier tracer, which knew more about the caches, as JSON-ready data."""
    missing: Unknown | None = None
    """Why events of this request are missing; None while none are."""
    evidence: Evidence = field(default_factory=Evidence)
    states: RuleStates = field(default_factory=RuleStates)
    """The rules' own states for the request."""
    phases: Phases = field(default_factory=Phases)
    """Filled from the facts by code that displays them, not by `apply`."""

    @property
    def complete(self) -> bool:
        """Whether every event of the request is known."""
        return self.missing is None

    def mark_gap(self, why: Unknown, *, before: Event | None = None) -> None:
        """Note that events of the request are missing before this one; without it, all later facts are unreliable."""
        self.missing = self.missing or why
        evidence = self.evidence
        evidence.blocks = evidence.asked = evidence.deferred = evidence.loading = evidence.received = None
        evidence.load_error = evidence.end = None
        if before is None:
            evidence.known_from = NEVER
        elif self.recorder in ("", before.recorder):
            evidence.known_from = max(evidence.known_from, before.sequence)

    @property
    def has_ended(self) -> bool:
        """Whether no later event can change how the request ended. The end of an engine ends its requests only provisionally:
        if the engine continues, they are reopened, except requests with a call that raised."""
        return self.evidence.ended is not None or (self.ended_ns is not None and self.status == "failed")

    @property
    def is_waiting(self) -> bool:
        """Whether a load's end, a first step or a release is expected within a deadline."""
        evidence = self.evidence
        open_ = evidence.received or evidence.asked or evidence.deferred or evidence.load_error
        waiting = evidence.loading or evidence.end or (open_ and self.ended_ns is None)
        return bool(waiting) and self.status != "abandoned"

    def last_lookup(self, connector_id: str) -> Lookup | None:
        """The last lookup that this connector answered in the current epoch. A MultiConnector's children share the
        request's account, but each gets its own lookups and allocations."""
        for lookup in reversed(self.evidence.recent_lookups):
            if lookup.epoch == self.epoch and lookup.connector_id == connector_id:
                return lookup
        return None

    def repeats_report(self, event: Received) -> bool:
        """Whether another child of a MultiConnector received this report before: it passes every report to all children."""
        evidence = self.evidence
        last = evidence.received
        return (
            last is not None
            and evidence.loading is None
            and event.connector_id not in evidence.received_by
            and event.scheduler_step == last.scheduler_step
            and len(evidence.connectors) > 1
        )

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON-ready data, without its evidence, states and phases."""
        data = asdict(self)
        del data["evidence"], data["states"], data["phases"], data["recalled"]
        data["complete"] = self.complete
        for name in ("loaded_by_rank", "stored_by_rank", "stored_ranges"):
            data[name] = data[name].copy()
        data["causes"] = self._explained()
        return data

    def _explained(self) -> list[Mapping[str, Any]]:
        """One admission per epoch, as JSON with the parts of the prompt: the latest one, in the form that was made first."""
        by_epoch: dict[int, Mapping[str, Any]] = {entry["epoch"]: entry for entry in self.recalled}
        for breakdown in self.causes:
            known, epoch = by_epoch.get(breakdown.event.epoch), breakdown.event.epoch
            if known is None or known["span_id"] != breakdown.event.span_id:
                by_epoch[epoch] = breakdown.as_dict()
        reason = None if self.evidence.failed_read is None else self.evidence.failed_read.reason
        if reason is not None:
            by_epoch = {epoch: _with_reason(entry, reason) for epoch, entry in by_epoch.items()}
        for epoch, reached in self.evidence.cut_short:
            if epoch in by_epoch:
                by_epoch[epoch] = cut_short(by_epoch[epoch], reached, PREEMPTED)
        if self._is_cut_short and self.epoch in by_epoch:
            ended, is_loading = self.outcome or self.status, self.evidence.loading is not None
            by_epoch[self.epoch] = cut_short(by_epoch[self.epoch], self._reached(), ended, is_loading=is_loading)
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]

    @property
    def _is_cut_short(self) -> bool:
        """Whether the request is known to compute no more tokens, and may not have computed its whole prompt."""
        is_over = self.ended_ns is not None or self.status == "failed"
        is_recorded = self.prompt is not None and bool(self.evidence.allocs)  # a log has only some of the events
        return is_over and is_recorded and self.outcome not in (*FULL_OUTPUT, LOST_CONTACT)

    def _reached(self, by_end: int | None = None) -> int | None:
        """Number of tokens computed in the epoch; None if unknown. `by_end` is vLLM's number at the request's end, which
        includes tokens that were to be loaded."""
        last, end = self.evidence.schedule, self.evidence.ended
        if self.missing is not None:
            return None
        if last is None:
            return 0
        if by_end is not None or (end is not None and end.computed is not None):
            return by_end if end is None else end.computed
        reached = last.computed + last.scheduled - (last.drafted or 0)
        is_every_step = last.drafted is not None or last.blocks_ids is not None  # recorded at level `detailed`
        return reached if is_every_step or reached >= (self.total or 0) else None

    def explain(self, breakdown: Breakdown) -> None:
        """Enter the parts of the prompt at an admission, replacing those of an earlier admission in its epoch."""
        epoch = breakdown.event.epoch
        self.causes = (*[each for each in self.causes if each.event.epoch != epoch], breakdown)

    def apply(self, event: Event) -> Fact | None:
        """Enter one event, the next in the request's order; returns the fact that it establishes, if any."""
        evidence, kind = self.evidence, event.kind
        if event.end_ns > self.last_ns:
            self.last_ns = event.end_ns
        if not self.started_ns:
            self.started_ns = event.start_ns
        if event.connector:
            self.connector = event.connector
        if not self.external:
            self.external = event.external or ""
        if event.role == SCHEDULER:
            self.recorder, evidence.number = event.recorder, event.sequence
            if event.trace_id and kind is not _STEP:  # a step shared by many requests has none of their traces
                self.trace_id = event.trace_id
            if event.epoch > self.epoch:
                self._begin_epoch(event)
        elif not self.trace_id:  # a worker may not know the caller's trace
            self.trace_id = event.trace_id
        final = self.status if self.ended_ns is not None and self.has_ended else None
        if event.error is not None:
            self.error = event.error
            self.status = "failed"
        enter = _ENTER.get(kind)
        fact: Fact | None = None if enter is None else enter(self, event)
        if final is not None and kind != Kind.REQUEST:
            self.status = final  # in spite of later events of this or another process
        return fact if fact is not None or event.error is None else Failed(event)

    def abandon(self, at_ns: int, outcome: str) -> None:
        """Close the account because its engine has ended, or counts as ended; a later event opens it again."""
        self.ended_ns, self.outcome = at_ns, outcome
        if self.status != "failed":
            self.status = "abandoned"

    def _enter_unfamiliar(self, event: Unfamiliar) -> None:
        self.mark_gap(Unknown.NEWER, before=event)

    def _enter_request_start(self, event: RequestStart) -> Began:
        self.total = self.prompt = event.total
        self.identity = event.identity
        return Began(event)

    def _enter_request(self, event: RequestEnd) -> Ended:
        evidence = self.evidence
        if evidence.ended is None:  # each child of a MultiConnector records it
            self.status, self.outcome, self.ended_ns = "finished", event.outcome, event.end_ns
            evidence.ended = event
            self.total = event.total or self.total
            if evidence.loading is not None:  # it no longer waits, although the load continues
                self.wait_loads += 1
                self._wait(evidence.loading, event)
        if event.free_delayed:
            evidence.end = event
        unused = self.evidence.offers.unused()
        self.evidence.offers.clear()
        return Ended(event, unused)

    def _enter_cut_off(self, event: CutOff) -> None:
        if self.evidence.ended is None:
            self.abandon(event.end_ns, CUT_OFF)

    def _enter_lookup(self, event: Lookup) -> LookedUp:
        self.refused += event.refused is not None
        self.total, self.computed = event.total, event.computed
        self.matched, self.returned = event.matched, event.returned
        evidence = self.evidence
        if evidence.cut_short and event.total > (self.prompt or 0):  # it has output, so its prompt was computed
            evidence.cut_short = tuple(each for each in evidence.cut_short if each[1] is not None)
        connector_id = event.connector_id
        if event.matched and event.matched > evidence.matched.get(connector_id, 0):
            evidence.matched[connector_id] = event.matched
            self.longest_match = max(self.longest_match, event.matched)
        asked = evidence.connectors[connector_id] = evidence.connectors.get(connector_id, 0) + 1
        if asked > self.lookups:
            self.lookups = asked
        if event.returned:
            evidence.repeated_hits[connector_id] = evidence.repeated_hits.get(connector_id, 0) + 1
        evidence.rank_lookups.clear()
        recent = evidence.recent_lookups
        if recent and _same(recent[-1], event):
            recent[-1] = event
        else:
            recent.append(event)
            if len(recent) > REMEMBERED_LOOKUPS:
                del recent[0]
        if self.prompt is not None and event.error is None:  # a log shows only some of the events
            self._note_wait(event)
        return evidence.offers.look_up(event)

    def _note_wait(self, event: Lookup) -> None:
        """Enter a lookup: the request waits for the connector's answer, or for blocks."""
        evidence = self.evidence
        if event.returned is not None:
            evidence.asked = evidence.asked or event
            if evidence.deferred is not None and evidence.deferred.connector_id == event.connector_id:
                self._wait(evidence.deferred, event)
                evidence.deferred = None
        elif evidence.deferred is None:
            evidence.deferred = evidence.deferred_last = event
            evidence.deferred_ns = 0
        elif evidence.deferred.connector_id == event.connector_id and evidence.deferred_last is not None:
            evidence.deferred_ns += min(max(0, event.end_ns - evidence.deferred_last.end_ns), ASKED_AGAIN_NS)
            evidence.deferred_last = event

    def _count_load(self, event: Alloc) -> None:
        """Count a load once, even if several children of a MultiConnector report it."""
        if not any(a.allocated for name, a in self.evidence.allocs.items() if name != event.connector_id):
            self.loads += 1

    def _wait(self, since: Event, until: Event) -> None:
        self.waited_ns += max(0, until.end_ns - since.end_ns)

    def _enter_rank_lookup(self, event: RankLookup) -> None:
        self.evidence.rank_lookups.append(event)

    def _enter_alloc(self, event: Alloc) -> Admitted | None:
        evidence = self.evidence
        self.allocated = event.allocated
        self.total = event.total or self.total
        if event.blocks_ids is not None:
            evidence.blocks = BlockTable(event)
        if event.allocated and event.error is None:
            self._count_load(event)
        # A second, empty allocation follows an asynchronous load, and does not count.
        if event.allocated or event.connector_id not in evidence.allocs:
            evidence.allocs[event.connector_id] = event
        if event.error is None:
            evidence.asked = evidence.deferred = None
            last = self.last_lookup(event.connector_id)
            is_async = bool(event.allocated) and last is not None and last.is_async
            self.status = "loading" if is_async else "admitted"
            # A lookup from before a gap may not be the one before this allocation.
            if last is not None and is_async and last.sequence >= evidence.known_from:
                evidence.loading = event
        return self.evidence.offers.allocate(event)

    def _enter_schedule(self, event: Schedule) -> Ran:
        evidence = self.evidence
        last = evidence.schedule
        if last is None:
            self.begun = event.computed
            if evidence.reached:
                self._recompute(event)
        elif last.drafted:
            self.rejected += min(last.drafted, max(0, last.computed + last.scheduled - event.computed))
        self.computed, self.scheduled = event.computed, event.scheduled
        self.status = "running"
        if event.blocks_ids or (last is None and event.blocks_ids is not None):  # most steps add none
            if event.blocks_whole or (last is None and self.missing is None):
                evidence.blocks = BlockTable(event)
            elif evidence.blocks is not None:
                evidence.blocks.add(event)
        evidence.ran_ahead = bool(event.scheduler_async) and evidence.short is not None and not evidence.ran_ahead
        if not evidence.ran_ahead:
            evidence.short = None
        evidence.schedule = event
        if event.scheduled > 1 and event.groups is not None and not event.drafted and has_states(event.groups):
            evidence.steps = (*evidence.steps, (event.computed, event.computed + event.scheduled))[-REMEMBERED_STEPS:]
        evidence.asked = evidence.deferred = evidence.load_error = None
        admitted = self.evidence.offers.use()
        return Ran(event, admitted, self.total)

    def _recompute(self, first: Schedule) -> None:
        """Enter that the request runs again after a preemption. If it had output by then, all tokens but the last one had KV;
        the last one is always computed, for its logits."""
        total, reached = self.total, self.evidence.reached
        if total is not None:
            has_output = self.prompt is not None and total > self.prompt
            reached = total - 1 if has_output else min(reached, total - 1)
        self.recomputed += max(0, reached - first.computed)

    def _enter_preempt(self, event: Preempt) -> Preempted:
        self.status = "preempted"
        is_repeated, self.evidence.preempted = self.evidence.preempted == event.epoch, event.epoch
        return Preempted(event, is_repeated)

    def _enter_load(self, event: Load) -> Copied:
        self.loaded += event.count
        self.loaded_by_rank[event.rank] = self.loaded_by_rank.get(event.rank, 0) + event.count
        recent = self.evidence.recent_lookups
        if event.rank == 0 and recent and not recent[-1].is_async and event.role != SCHEDULER:
            self.wait_loads += 1
            self.waited_ns += max(0, event.end_ns - event.start_ns)
        if event.expected is not None and event.count < event.expected:
            if event.recorder == self.recorder:
                self.evidence.short, self.evidence.ran_ahead = event, False
            else:
                self.evidence.short_elsewhere = event
        return Copied(event)

    def _enter_load_error(self, event: LoadError) -> None:
        self.evidence.short, self.evidence.load_failed, self.evidence.loaded = None, True, ()
        self.evidence.failed_ever, self.evidence.load_error = True, event

    def _enter_block_check(self, event: BlockCheck) -> None:
        self.looked_at += event.looked
        self.wrong_blocks += event.wrong

    def _enter_store(self, event: Store) -> Copied:
        self.stored += event.count
        self.stored_by_rank[event.rank] = self.stored_by_rank.get(event.rank, 0) + event.count
        if event.role == SCHEDULER:  # from a log; a worker's store repeats the plan, on every rank
            self._extend(event)
        return Copied(event)

    def _enter_load_plan(self, event: Plan) -> None:
        if event.transfer_id is not None:
            self.evidence.jobs[event.connector_id, event.transfer_id] = event

    def _enter_store_plan(self, event: StorePlan) -> None:
        self._extend(event)
        self._enter_load_plan(event)

    def _extend(self, event: Store | StorePlan) -> None:
        start = event.start
        if start is None:
            return
        end, ranges = start + event.count, self.stored_ranges
        stored = self.evidence.stored.get(event.connector_id)
        if stored is None:
            self.evidence.stored[event.connector_id] = Stored(end, event)
        else:
            stored.end, stored.last = max(stored.end, end), event
        if ranges and ranges[-1][0] <= start <= ranges[-1][1]:  # the usual case: it continues the last one
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            self.stored_ranges = merged(ranges, start, end)

    def _enter_transfer_end(self, event: TransferEnd) -> Transferred | None:
        plan = self.evidence.jobs.pop(event.job, None)
        return None if plan is None else Transferred(event, plan)

    def _enter_received(self, event: Received) -> LoadReceived | Released | None:
        self.status = "admitted"
        evidence = self.evidence
        if evidence.loading is not None:
            if evidence.ended is None:
                self.wait_loads += 1
                self._wait(evidence.loading, event)
            evidence.loaded = self._asynchronous_loads()
        if self.repeats_report(event):
            evidence.received_by |= {event.connector_id}
            if any(load.alloc.connector_id == event.connector_id for load in evidence.loaded):
                evidence.received = event  # the child that loaded, among all children that received the report
        else:
            evidence.loading, evidence.received, evidence.received_by = None, event, frozenset({event.connector_id})
        if self.ended_ns is not None:
            evidence.end = None  # vLLM frees an ended request's blocks at either report
        if event.failed:
            evidence.short, evidence.load_failed = None, True
            evidence.failed_ever = True
        if evidence.load_failed:
            evidence.loaded = ()
        if self.ended_ns is not None:
            return Released(event)
        offer = self.evidence.offers.get(event.connector_id)
        if offer is None or offer.alloc is None or not offer.alloc.allocated or not offer.lookup.is_async:
            return None
        return LoadReceived(event, offer.alloc)

    def _asynchronous_loads(self) -> tuple[Loaded, ...]:
        """The epoch's asynchronous loads."""
        taken = [
            (alloc, self.last_lookup(alloc.connector_id)) for alloc in self.evidence.allocs.values() if alloc.allocated
        ]
        return tuple(
            Loaded(alloc, lookup.computed + alloc.allocated)
            for alloc, lookup in taken
            if lookup is not None and lookup.is_async
        )

    def _enter_sent(self, event: Sent) -> Released:
        self.evidence.sent, self.evidence.end = event, None
        return Released(event)

    def _enter_lease(self, event: Lease) -> None:
        self.evidence.lease = event

    def _enter_free(self, event: Free) -> Released:
        self.evidence.freed = self.evidence.freed or event
        self.evidence.end = None
        return Released(event)

    def _enter_xfer(self, event: Xfer) -> None:
        evidence = self.evidence
        if event.xfer_op != XferOp.READ:
            return
        if event.xfer_state == XferState.FAILED:
            evidence.failed_read = evidence.failed_read or event
        elif event.xfer_state == XferState.POSTED and _reads_the_same(evidence.failed_read, event):
            evidence.failed_read = None

    def _enter_stats(self, event: Stats) -> None:
        self.evidence.stats = event

    def _begin_epoch(self, first: Event) -> None:
        if self.prompt is not None and self.evidence.allocs:
            reached = self._reached(first.computed if isinstance(first, Preempt) else None)
            if reached is None or reached < (self.total or 0):
                self.evidence.cut_short += ((self.epoch, reached),)
        self.epoch = first.epoch
        self.computed = self.matched = self.returned = self.allocated = self.scheduled = self.begun = None
        self.stored_ranges = []
        self.evidence.begin_epoch()


_ENTER = handlers(Account)
_STEP = Kind.SCHEDULE  # looking up a name is several times faster than an enum member


def _with_reason(entry: Mapping[str, Any], reason: str) -> Mapping[str, Any]:
    """An admission; handed-over tokens that did not arrive get the reason of the failed read."""
    parts = [
        {**part, "reason": reason} if part["cause"] == Cause.FAILED_LOAD and part["tier"] == PEER else part
        for part in entry["parts"]
    ]
    return {**entry, "parts": parts}


def merged(ranges: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Add a range of tokens to ordered, disjoint ranges."""
    apart = [(a, b) for a, b in ranges if b < start or a > end]
    touching = [(a, b) for a, b in ranges if not (b < start or a > end)]
    joined = (min([start, *(a for a, _ in touching)]), max([end, *(b for _, b in touching)]))
    return sorted([*apart, joined])


def _reads_the_same(failed: Xfer | None, event: Xfer) -> bool:
    """Whether a read has the same local and remote rank as a failed one."""
    return failed is not None and (event.recorder, event.rank, event.peer, event.peer_rank) == (
        failed.recorder, failed.rank, failed.peer, failed.peer_rank,
    )  # fmt: skip


def _same(one: Lookup, other: Lookup) -> bool:
    """Whether two lookups have the same numbers, in the same epoch, from the same connector."""
    return (  # compared one by one, which is faster than comparing tuples
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
