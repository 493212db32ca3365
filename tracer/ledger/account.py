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
from kvtrail.tracer.events.semconv import CUT_OFF, UNHEARD, Kind
from kvtrail.tracer.ledger.block_table import BlockTable, names_all_blocks
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
"""Beyond every number of an event."""
ASKED_AGAIN_NS = 5 * 10**9
"""What counts at most of the time from one answer 'ask me later' to the next: a busy engine may ask again after minutes."""
REMEMBERED_LOOKUPS = 16
"""Distinct lookups remembered per request as witnesses; repeated ones with the same numbers count as one."""

REMEMBERED_STEPS = 256
"""Steps with several tokens remembered per request of a model with recurrent states."""


FULL_OUTPUT = ("stopped", "length_capped")
"""vLLM's words for the end of a request that has computed all of its prompt."""
PREEMPTED = "preempted"
"""How an epoch ends."""


class Stored(Struct, eq=False):
    """What one connector has stored of a request in an epoch: up to which token, and the last of its plans or stores."""

    end: int
    last: Store | StorePlan


class Loaded(NamedTuple):
    """A load that was received: the allocation for it, and the computed tokens after it."""

    alloc: Alloc
    end: int


class Evidence(Struct, eq=False):
    """The events behind an account's numbers, which rules use as witnesses. A preemption clears those of its epoch. There may
    be a hundred thousand of these: what is seldom there is a frozenset, and the empty one is shared."""

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
    """Where the epoch's last steps with several tokens began and ended, without those with speculative tokens; only of models
    with recurrent states."""
    blocks: BlockTable | None = None
    """The block table, as allocations and steps published it; None where they did not."""
    loading: Alloc | None = None
    """The allocation with an asynchronous load that has not been received."""
    received: Received | None = None
    """The last completed asynchronous load of the epoch."""
    loaded: tuple[Loaded, ...] = ()
    """The asynchronous load that was received last, over all epochs, as each connector saw it that loads; none after a failed
    load."""
    received_by: frozenset[str] = frozenset()
    """The connectors that recorded the epoch's last report that a load was received: a MultiConnector passes it to all of its
    children."""
    matched: dict[str, int] = {}
    """By connector, the longest prefix that any of its lookups matched, over all epochs."""
    stored: dict[str, Stored] = {}
    """By connector, what it has stored in the epoch, as far as the tokens are known."""
    jobs: dict[Job, Plan] = {}
    """Open asynchronous transfers that have a number, over all epochs."""
    ran_ahead: bool = False
    """Whether a step has been recorded since that load which was scheduled before its error could be reported."""
    short: Load | None = None
    """A load that brought less than expected and for which no error has been reported yet."""
    short_elsewhere: Load | None = None
    """The last such load that another process recorded: whether an error of the request came before it is not known."""
    asked: Lookup | None = None
    """The epoch's first lookup that was answered, while the request has not been given blocks since."""
    deferred: Lookup | None = None
    """The first of a row of answers 'ask me later', from one connector, that goes on."""
    deferred_last: Lookup | None = None
    """The last one of that row."""
    deferred_ns: int = 0
    """How long that row has been going on, in which the connector was asked every few seconds."""
    failed_ever: bool = False
    """Whether a load was reported as failed, in any epoch."""
    load_error: LoadError | None = None
    """The last load error, while the request has not run since."""
    load_failed: bool = False
    """Whether a load of the epoch was reported as failed."""
    lease: Lease | None = None
    """When the engine that is to read the blocks asked last to keep them."""
    freed: Free | None = None
    """When the blocks were freed after the end, if that was recorded."""
    failed_read: Xfer | None = None
    """The first of these reads that has failed, unless it was begun again since."""
    cut_short: tuple[tuple[int, int | None], ...] = ()
    """The epochs that ended before all of the prompt was computed, each with the tokens up to which it was; None where that
    is not known, nor whether all was."""
    rank_lookups: list[RankLookup] = []
    """The ranks' answers since the last lookup."""
    stats: Stats | None = None
    """The last statistics of the epoch."""
    end: RequestEnd | None = None
    """The end, while the request's blocks are kept after it."""
    ended: RequestEnd | None = None
    """The end."""
    number: int = -1
    """The number, among all of the recorder on the scheduler's side, up to which none of its events is missing that came
    after `known_from`."""
    known_from: int = -1
    """The number from which on all its events are known, as far as the last one."""
    sent: Sent | None = None
    """The last completed asynchronous store after the end."""

    offers: Offers = field(default_factory=Offers)
    """The connectors' answers for the admission that is coming, or has come and not run yet."""
    """The offers with which the request began to run for the first time, until it is preempted."""
    preempted: int = -1
    """The epoch that is known to have ended by a preemption."""
    reached: int = 0
    """Tokens with KV when the request was last preempted, as far as that is known."""

    def begin_epoch(self) -> None:
        """Forget what a preemption makes void."""
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
    """What is known of one request at one moment. Counts are tokens unless noted otherwise; None means 'not yet'."""

    engine: str
    request: str
    external: str = ""
    trace_id: str = ""
    connector: str = ""
    status: str = "queued"
    """queued | admitted | loading | running | preempted | finished | failed | abandoned: `failed` when a call about it
    raised, `abandoned` when the engine ended before the request did, or is taken for ended; `outcome` says which."""
    recorder: str = ""
    """The recorder on the scheduler's side."""
    epoch: int = 0
    """How often the request has been preempted."""
    total: int | None = None
    prompt: int | None = None
    """Tokens when the request began."""
    identity: str | None = None
    """A digest of its cache salt and adapter; None without either, or as long as its start is not known."""
    computed: int | None = None
    """Computed in vLLM, as the last call about it said."""
    matched: int | None = None
    returned: int | None = None
    allocated: int | None = None
    scheduled: int | None = None
    begun: int | None = None
    """First scheduled position after the admission."""
    rejected: int = 0
    """Rejected speculative tokens, over all epochs; known where every step is recorded."""
    loaded: int = 0
    """Copied from the connector's store, over all epochs and ranks of one recorder."""
    stored: int = 0
    """Copied into the connector's store."""
    loaded_by_rank: dict[int, int] = {}
    stored_by_rank: dict[int, int] = {}
    stored_ranges: list[tuple[int, int]] = []
    """Ranges [from, to) that the epoch's plans store or found stored already, merged and in order."""
    longest_match: int = 0
    """The longest prefix that any of its lookups matched."""
    lookups: int = 0
    """Lookups of the scheduler, in all epochs: one asks all children of a MultiConnector, and counts once."""
    loads: int = 0
    """How often it was given blocks to load tokens into."""
    wait_loads: int = 0
    """Of these, loads that held it up: asynchronous ones that it waited for, and copies within a step."""
    waited_ns: int = 0
    """How long it waited for KV, in all: for these loads, and after answers 'ask me later'."""
    recomputed: int = 0
    """Tokens with KV when it was preempted that had to be computed after that."""
    refused: int = 0
    """Lookup answers that the guard replaced."""
    looked_at: int = 0
    """Blocks that were compared with what was computed under their hashes, each time, over all epochs and ranks."""
    wrong_blocks: int = 0
    """Of these, blocks that were wrong."""
    started_ns: int = 0
    last_ns: int = 0
    ended_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    causes: tuple[Breakdown, ...] = ()
    """Its admissions with the parts of its prompt, the latest of each epoch. Filled by the detector, not by `apply`."""
    recalled: Sequence[Mapping[str, Any]] = ()
    """Such admissions as an earlier tracer has explained them for good, as JSON-ready data: it knew more of the caches."""
    missing: Unknown | None = None
    """Why events of this request are missing; None while none are."""
    evidence: Evidence = field(default_factory=Evidence)
    states: RuleStates = field(default_factory=RuleStates)
    """What single rules remember of the request."""
    phases: Phases = field(default_factory=Phases)
    """Filled with the facts by whoever shows them, not by `apply`."""

    @property
    def complete(self) -> bool:
        """Whether every event of the request is known."""
        return self.missing is None

    def mark_gap(self, why: Unknown, *, before: Event | None = None) -> None:
        """Events of the request are missing before this one; without it, nothing that comes afterwards can be relied on."""
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
        """Whether no later event can change how the request ended. The end of an engine ends its requests only
        provisionally: if the engine goes on, they are reopened, except those with a call that raised."""
        return self.evidence.ended is not None or (self.ended_ns is not None and self.status == "failed")

    @property
    def is_waiting(self) -> bool:
        """Whether a load, a first step or a release is still to come, and should come in time."""
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
        """Whether another child of a MultiConnector was passed this report before: it hands every report to all of them."""
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
        """The admissions with the parts of the prompt: as they were known first, until the epoch has another one."""
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
        """Whether the request is known to compute nothing more, and may not have computed all of its prompt."""
        is_over = self.ended_ns is not None or self.status == "failed"
        is_recorded = self.prompt is not None and bool(self.evidence.allocs)  # a log has but a part of what happens
        return is_over and is_recorded and self.outcome not in (*FULL_OUTPUT, UNHEARD)

    def _reached(self, by_end: int | None = None) -> int | None:
        """Up to which token the epoch has computed the request; None where that is not known. `by_end` is what vLLM says of
        its end: that has the tokens that it was to load, too."""
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
        """Enter the parts of the prompt at an admission, instead of those of an earlier one in its epoch."""
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
            if event.trace_id and kind is not _STEP:  # a step that many requests share has none of theirs
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
            self.status = final  # whatever comes later, of this process or another
        return fact if fact is not None or event.error is None else Failed(event)

    def abandon(self, at_ns: int, outcome: str) -> None:
        """Close the account because its engine has ended, or is taken for ended; an event that comes all the same opens it
        again."""
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
            if evidence.loading is not None:  # it waits no longer, though the load goes on
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
        if evidence.cut_short and event.total > (
            self.prompt or 0
        ):  # it has output, so that its prompt had been computed
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
        if self.prompt is not None and event.error is None:  # from a log only a part of what happens is known
            self._note_wait(event)
        return evidence.offers.look_up(event)

    def _note_wait(self, event: Lookup) -> None:
        """The request waits for an answer of the connector, or for blocks."""
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
        """Count a load, once however many children of a MultiConnector report it."""
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
            evidence.blocks = BlockTable(event) if names_all_blocks(event) else None
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
        """The request runs again after a preemption. If it had output by then, the KV of all but the last of its tokens had
        been there; the last one is always computed, for its logits."""
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
        if ranges and ranges[-1][0] <= start <= ranges[-1][1]:  # nearly always: it continues the last one
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        elif not ranges or ranges[-1][1] < start:
            ranges.append((start, end))
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
                evidence.received = event  # of all children that were passed the report, the one that loaded
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
_STEP = Kind.SCHEDULE  # a name is looked up several times faster than a member of an enum


def _with_reason(entry: Mapping[str, Any], reason: str) -> Mapping[str, Any]:
    """An admission; what another engine had handed over and did not arrive, with the reason of the failed read."""
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
    """Whether a read is by the same rank, and of the same rank of another engine, as one that has failed."""
    return failed is not None and (event.recorder, event.rank, event.peer, event.peer_rank) == (
        failed.recorder, failed.rank, failed.peer, failed.peer_rank,
    )  # fmt: skip


def _same(one: Lookup, other: Lookup) -> bool:
    """Whether two lookups have the same numbers, in the same epoch, from the same connector."""
    return (  # compared one by one: it is faster than two tuples
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
