"""The state of one engine across its requests: blocks, open transfers, stored chunks.

Pure, like the accounts. It expects the events of one recorder in order, which the detector ensures. Each fact is known
independently: if events are missing, the facts that they may have changed are forgotten until they are reported again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import (
    UNFAMILIAR,
    Alloc,
    CacheReset,
    Event,
    Evict,
    Flush,
    Free,
    Handoff,
    Heartbeat,
    Holdings,
    Job,
    Load,
    LoadError,
    LoadPlan,
    Lookup,
    Plan,
    Preempt,
    Read,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    Sent,
    Store,
    StorePlan,
    TransferEnd,
    Unfamiliar,
    Xfer,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.events.patience import of_connector
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.ledger.block_table import BlockTable, loaded_into
from kvtrail.tracer.ledger.chunk_keys import ChunkKeys
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.ledger.recorder_clocks import DeadlineClocks, RecordedTime
from kvtrail.tracer.ledger.rule_states import Followers, RuleStates
from kvtrail.tracer.ledger.transfers import TransferEnds, TransferFlow
from kvtrail.tracer.model.findings import Unknown

MAX_LEFT = 1_000
"""Maximum number of requests without blocks for which the release of their blocks is remembered."""


class Identity(NamedTuple):
    """The properties besides the tokens on which a request's KV depends: its adapter and salt, and the adapter's version;
    None if it has none, or does not report them."""

    identity: str | None
    version: str | None


@dataclass(slots=True)
class Engine:
    """The state of one engine, from the events of one recorder."""

    missing: Unknown | None = None
    """Why events of the recorder are missing; None if none are. Facts reported since then are still known."""
    blind: Unknown | None = None
    """Why nothing can be concluded about the engine as a whole, regardless of its reports; None if conclusions are
    possible."""
    lost_number: int = -1
    """The highest number of a missing event."""
    time: RecordedTime = field(default_factory=RecordedTime)
    """The recorder's own time."""
    clocks: DeadlineClocks = field(default_factory=DeadlineClocks)
    """Time in which the scheduler could have acted. Deadline rules use it."""
    closed: bool = False
    """Whether the recorder has sent its end record."""
    raised: bool = False
    """Whether the scheduler's last call of a connector raised: then vLLM ends, and no more events are expected."""
    met: dict[str, Identity] = field(default_factory=dict)
    """Open requests with complete events: they began after the last missing event."""
    tables: dict[str, BlockTable] = field(default_factory=dict)
    """Known block tables of the requests that hold blocks."""
    unknown_tables: set[str] = field(default_factory=set)
    """Requests with an open transfer and an unknown table."""
    given: dict[int, Event] = field(default_factory=dict)
    """By block, the last event that allocated it from the free blocks; an allocation is stored without its long table."""
    left: BoundedDict[str, Event] = field(default_factory=lambda: BoundedDict(MAX_LEFT))
    """Requests without blocks, with the event since which: a preemption, an end, or a failed load."""
    step: int | None = None
    """The latest scheduling step that an event names."""
    ran_number: int = -1
    """The number of the latest step of a request."""
    admitted: set[str] = field(default_factory=set)
    """Requests that received blocks and have not run since."""
    transfers: dict[int, dict[str, Event]] = field(default_factory=dict)
    """Open asynchronous transfers over a block: by block, then by the transfer's request."""
    contested: dict[Job | str, tuple[int, Event]] = field(default_factory=dict)
    """Open transfers over a block that has since been allocated to another request: the block, and the event of the
    allocation. By transfer, if it has a number, or by request for an asynchronous load. A flush settles it."""
    undecided: set[Job | str] = field(default_factory=set)
    """Open transfers over a block that was allocated to another request while its holder was unknown."""
    jobs: dict[Job, Plan] = field(default_factory=dict)
    """Open numbered transfers."""
    loads: dict[str, Alloc] = field(default_factory=dict)
    """Open asynchronous loads by request."""
    flow: TransferFlow = field(default_factory=TransferFlow)
    """The progress of the connectors' transfers. Kept even if events are missing."""
    lookups: dict[str, dict[str, Lookup]] = field(default_factory=dict)
    """The last lookup of a live request, by connector."""
    stores: dict[str, ChunkKeys] = field(default_factory=dict)
    """The chunks in the connectors' stores, by connector."""
    handoffs: HandOffs = field(default_factory=HandOffs)
    """The hand-offs between engines. All recorders share it."""
    invalid: dict[int, LoadError | Received] = field(default_factory=dict)
    """Blocks that failed to load and have not been computed since, with the report of the failure."""
    recomputing: dict[int, set[str]] = field(default_factory=dict)
    """The requests that have started to compute such a block from its first token."""
    ran_since: dict[str, Schedule] = field(default_factory=dict)
    """The requests that have run since the last load error, and the last step of each, as long as there are such blocks."""
    storing: set[str] = field(default_factory=set)
    """Connectors with recorded stores."""
    short: Load | None = None
    """A load that copied less than expected, in the last step with loads, as long as no error has been reported since."""
    kept: dict[str, RequestEnd] = field(default_factory=dict)
    """The ends of requests whose blocks are still kept."""
    beat: Heartbeat | None = None
    """The latest heartbeat that had the scheduler's steps."""
    transfer_ends: defaultdict[tuple[str, str], TransferEnds] = field(default_factory=lambda: defaultdict(TransferEnds))
    """By connector and direction, the transfers and whether they still end: `load`, `store`, or `save` for transfers that
    keep an ended request's blocks."""
    probes_off: set[str] = field(default_factory=set)
    """Connectors with a probe that switched itself off."""
    followers: Followers = field(default_factory=dict)
    """The methods of the rules' states."""
    states: RuleStates = field(default_factory=RuleStates)
    """The rules' own states for the engine."""

    def keys(self, connector_id: str) -> ChunkKeys:
        """The known chunks in a connector's store."""
        known = self.stores.get(connector_id)
        if known is None:
            known = self.stores[connector_id] = ChunkKeys(lost=self.missing)
        return known

    def last_lookup(self, event: Event) -> Lookup | None:
        """The last lookup of the event's request by the event's connector."""
        return self.lookups.get(event.request or "", {}).get(event.connector_id)

    def mark_gap(self, why: Unknown, *, before: Event) -> None:
        """Note that events are missing before this one: forget all facts that they may have changed."""
        self.missing, self.lost_number = why, before.sequence - 1
        self.flow.mark_gap(before)
        for known in self.stores.values():
            known.mark_gap(why)
        for facts in (
            self.met, self.tables, self.unknown_tables, self.admitted, self.transfers, self.contested, self.undecided,
            self.jobs, self.loads, self.lookups,
            self.invalid, self.recomputing, self.ran_since, self.kept, self.transfer_ends, self.given, self.left, self.states,
        ):  # fmt: skip
            facts.clear()
        self.handoffs.mark_gap(before.recorder)
        self.clocks.mark_gap()
        self.short = None

    def apply(self, event: Event) -> None:
        """Enter one event, the next of the recorder."""
        if event.sampled_only:
            self.blind, self.clocks.is_known = Unknown.SAMPLED, False
        if event.role == SCHEDULER:
            self.raised = event.error is not None
        elif event.kind not in _OF_ANY_ROLE:
            return
        for state, follow in self.followers.get(event.kind, ()):
            follow(self.states[state], event, self)
        if enter := _ENTER.get(event.kind):
            enter(self, event)

    def _enter_unfamiliar(self, event: Unfamiliar) -> None:
        self.mark_gap(Unknown.NEWER, before=event)

    def _enter_request_start(self, event: RequestStart) -> None:
        self.met[event.request or ""] = Identity(event.identity, event.adapter_version)
        self.left.pop(event.request or "", None)
        self.handoffs.enter_start(event)

    def _enter_lookup(self, event: Lookup) -> None:
        self.step = event.scheduler_step
        if event.request is not None:
            if event.request in self.tables:  # vLLM asks only about a request without blocks: a failed load's are free
                self._leave(event)
            self.lookups.setdefault(event.request, {})[event.connector_id] = event
        if event.chunk_keys:
            self.keys(event.connector_id).claimed(event.chunk_keys)

    def _enter_alloc(self, event: Alloc) -> None:
        request = event.request or ""
        self.step = event.scheduler_step
        self.admitted.add(request)
        lookup = self.last_lookup(event)
        if event.blocks_ids is not None:
            if self.transfers:
                self._contest(event, event.blocks_ids)
            if self.invalid:
                self._renew(request, self._given_afresh(event, lookup))
            before = self.tables.get(request)
            table = self.tables[request] = BlockTable(event)
            self.unknown_tables.discard(request)
            self.left.pop(request, None)
            if lookup is not None:
                self._give(event, set(table.new_from(lookup.computed)).difference(before or ()))
            self.handoffs.enter_given_out(event, table.new_from(0 if lookup is None else lookup.computed))
        if not event.allocated or event.error is not None or lookup is None:
            return
        if lookup.is_async:
            self.loads[request] = event
            self.flow.loads(event)
            self.transfer_ends[event.connector_id, "load"].begin(request, event)
            if event.blocks_ids is not None:
                self._open(event, loaded_into(event))

    def _enter_schedule(self, event: Schedule) -> None:
        request = event.request or ""
        self.step = event.scheduler_step
        self.short, self.ran_number = None, event.sequence
        first = request in self.admitted
        if event.blocks_ids or (first and event.blocks_ids is not None):  # most steps add none
            if self.transfers and (first or not event.blocks_whole):  # a table that is reported again allocates nothing
                self._contest(event, event.blocks_ids, are_new=not first)
            if not first and not event.blocks_whole:
                self.handoffs.enter_given_out(event, event.blocks_ids)
            if first or event.blocks_whole:
                self.tables[request] = BlockTable(event)
                self.unknown_tables.discard(request)
            elif request in self.tables:
                if self.invalid:
                    self._renew(request, event.blocks_ids)
                self.tables[request].add(event)
                self._give(event, event.blocks_ids)
        self.admitted.discard(request)
        if self.invalid:
            self.ran_since[request] = event
            if event.block_size:
                self._recompute(request, event)

    def _give(self, event: Alloc | Schedule, blocks: Collection[int]) -> None:
        """Enter that free blocks were allocated to a request."""
        if blocks:
            given = event if type(event) is Schedule else structs.replace(event, blocks_ids=None, blocks_by_group=None)
            self.given.update(dict.fromkeys(blocks, given))

    def given_since_left(self, plan: Plan) -> dict[int, Event]:
        """The blocks of a plan that were allocated to other requests since the plan's request freed its blocks, each with the
        event of the allocation; empty for a request that holds blocks, or whose blocks are unknown."""
        left = self.left.get(plan.request or "")
        if left is None:
            return {}
        return {
            block: given
            for block in plan.blocks_ids or ()
            if block != NULL_BLOCK
            and (given := self.given.get(block)) is not None
            and given.request != plan.request
            and given.sequence > left.sequence
        }

    def has_run_since(self, given: Event) -> bool:
        """Whether the step that allocated a block is known to have run: before that, it may still be copied."""
        step = getattr(given, "scheduler_step", None)
        return step is not None and self.step is not None and step < self.step

    def _given_afresh(self, event: Alloc, lookup: Lookup | None) -> Iterable[int]:
        """The blocks of an allocation that may be newly allocated. A failed block is not new if vLLM's own cache considers it
        computed, an error named it, and this request was the last to receive it. Otherwise it may be new: a request may hit
        blocks that another one computes in the same step. A block that the request holds is not new either if it failed since
        the last lookup: after an asynchronous load, vLLM reports all blocks of the request again."""
        blocks, held = event.blocks_ids or (), self.tables.get(event.request or "") or ()
        if lookup is None:
            return blocks
        cached = {
            block
            for size, ids in BlockTable(event).sized()
            for block in ids[: lookup.computed // size]
            if (given := self.given.get(block)) is not None and given.request == event.request
        }
        failed = {block: report for block in blocks if (report := self.invalid.get(block)) is not None}
        remain = {
            block
            for block, report in failed.items()
            if (block in held and report.sequence > lookup.sequence) or (block in cached and type(report) is LoadError)
        }
        return [block for block in blocks if block not in remain]

    def _renew(self, request: str, blocks: Iterable[int]) -> None:
        """Forget the failed load of a newly allocated block, unless another request holds it."""
        held = {block for other, table in self.tables.items() if other != request for block in table}
        for block in blocks:
            if block in self.invalid and block not in held:
                del self.invalid[block]
                self.recomputing.pop(block, None)

    def _recompute(self, request: str, event: Schedule) -> None:
        """Forget the failed loads of blocks that a step computes: blocks after its first token, and partly computed ones."""
        end = event.computed + event.scheduled
        table = self.tables.get(request)
        if table is None:  # it may compute any of them
            self.invalid.clear()
            self.recomputing.clear()
            return
        for size, ids in table.sized():
            for position in range(event.computed // size, min(len(ids), -(-end // size))):
                block = ids[position]
                if block not in self.invalid:
                    continue
                begun = self.recomputing.setdefault(block, set())
                if position * size >= event.computed:
                    begun.add(request)
                if request in begun and end >= (position + 1) * size:
                    del self.invalid[block], self.recomputing[block]

    def _enter_preempt(self, event: Preempt) -> None:
        self._leave(event)
        self.admitted.discard(event.request or "")

    def _enter_request(self, event: RequestEnd) -> None:
        request = event.request or ""
        self.handoffs.enter_end(event, is_known=request in self.met, is_loading=request in self.loads)
        if event.free_delayed:
            self.kept[request] = event
            if not (event.handoff or event.lease_s or of_connector(event.connector, event.patience).keep_s):
                self.transfer_ends[event.connector_id, "save"].begin(request, event)
        else:
            self._leave(event)
        self.lookups.pop(request, None)
        self.met.pop(request, None)
        if event.outcome == "aborted":
            for ends in self.transfer_ends.values():
                ends.forget(request)

    def _enter_sent(self, event: Sent) -> None:
        self._leave(event)
        self.handoffs.enter_release(event)
        self._release(event)

    def _enter_free(self, event: Free) -> None:
        self.handoffs.enter_release(event)
        self._release(event)

    def _enter_read(self, event: Read) -> None:
        self.handoffs.enter_read(event)

    def _enter_xfer(self, event: Xfer) -> None:
        self.handoffs.enter_xfer(event)

    def _enter_handoff(self, event: Handoff) -> None:
        self.handoffs.enter_handoff(event)

    def _enter_received(self, event: Received) -> None:
        self.handoffs.enter_received(event)
        if event.request in self.kept:  # vLLM frees an ended request's blocks at either report
            self._leave(event)
        self._release(event)
        alloc = self.loads.pop(event.request or "", None)
        if event.failed and alloc is not None and alloc.blocks_ids is not None and event.request in self.met:
            into = loaded_into(alloc)
            if not any(block in self.invalid and self.invalid[block].sequence > alloc.sequence for block in into):
                self._fails(event, into)  # no load error named the failed ones
        self.flow.received(event)
        self._settle(event.request or "")
        if alloc is not None:
            self._end(event.request or "", alloc, "load", event)
            self._close(alloc, alloc.blocks_ids or ())

    def _enter_load_plan(self, event: LoadPlan) -> None:
        if event.transfer_id is not None:
            self._begin(event, "load")

    def _enter_store_plan(self, event: StorePlan) -> None:
        self.storing.add(event.connector_id)
        if event.transfer_id is not None:
            self._begin(event, "store")
        else:
            self._stored(event)

    def _enter_transfer_end(self, event: TransferEnd) -> None:
        self._settle(event.job)
        plan = self.jobs.pop(event.job, None)
        self.flow.ended(plan, event)
        if plan is not None:
            self._end(event.job, plan, "store" if isinstance(plan, StorePlan) else "load", event)
            self._close(plan, plan.blocks_ids or ())
            if isinstance(plan, StorePlan) and not event.failed:
                self._stored(plan)

    def _enter_flush(self, event: Flush) -> None:
        """Enter a flush: the transfer ends before the step runs, so its blocks may be allocated again in this step."""
        self._settle(event.job)
        if plan := self.jobs.get(event.job):
            self._close(plan, plan.blocks_ids or ())

    def _enter_load(self, event: Load) -> None:
        if event.expected is not None and event.count < event.expected:
            self.short = event
        elif self.short is not None and self.short.start_ns != event.start_ns:  # the transfers of a step begin together
            self.short = None

    def _enter_load_error(self, event: LoadError) -> None:
        self.short = None
        self.handoffs.enter_load_error(event)
        load = self.loads.get(event.request or "")
        own = set(event.blocks_ids if load is None or load.blocks_ids is None else loaded_into(load))
        self._fails(event, [block for block in event.blocks_ids if self._may_be_loaded(block, is_own=block in own)])

    def _may_be_loaded(self, block: int, *, is_own: bool) -> bool:
        """Whether a load may have been copied into a block. LMCache also names blocks of a failed load that vLLM had computed
        before, and into which the load does not copy (LMCache 0.5.6, `integration/vllm/vllm_multi_process_adapter.py`).

        Args:
            is_own: whether the request's open load may write it.
        """
        given = self.given.get(block)
        if given is None:
            return is_own or self.missing is None
        if type(given) is not Alloc or not given.allocated:
            return False
        return is_own or given.request in self.loads or given.scheduler_step == self.step

    def _fails(self, event: LoadError | Received, blocks: Iterable[int]) -> None:
        """Enter blocks that failed to load: the blocks that a load error names, or all blocks of a failed load."""
        self.ran_since.clear()
        for block in blocks:
            self.invalid[block] = event
            self.recomputing.pop(block, None)

    def _enter_cache_reset(self, event: CacheReset) -> None:
        """Enter that all blocks were free: otherwise vLLM refuses the reset (vLLM 0.32, `v1/core/block_pool.py`). It preempts
        requests for this without a call, so their own events come later. The reset may be recorded only after the step's
        allocations, so the requests that have received blocks and not run since keep their blocks."""
        for request in self.tables.keys() - self.admitted:
            del self.tables[request]
            self.left.setdefault(request, event)
        self.unknown_tables.clear()
        self.invalid.clear()
        self.recomputing.clear()
        self.ran_since.clear()

    def _enter_evict(self, event: Evict) -> None:
        if event.chunk_key is not None:
            self.keys(event.connector_id).evicted(event.chunk_key)

    def _enter_reset(self, event: Reset) -> None:
        if event.succeeded is not False:
            self.keys(event.connector_id).cleared()
            for (connector_id, _), ends in self.transfer_ends.items():
                if connector_id == event.connector_id:
                    ends.forget()

    def _enter_holdings(self, event: Holdings) -> None:
        keys = self.keys(event.connector_id)
        keys.listed(event.chunk_keys, first=event.holdings_first, last=event.holdings_last)

    def _enter_heartbeat(self, event: Heartbeat) -> None:
        self.handoffs.enter_heartbeat(event)
        if event.recorder_probes_off and not self.probes_off.issuperset(event.recorder_probes_off):
            self.probes_off.update(event.recorder_probes_off)
            self._blame_probe()
        if event.scheduler_step is not None:
            if self.beat is not None:
                for ends in self.transfer_ends.values():
                    ends.pass_time(self.beat, event)
            self.beat = event

    def _blame_probe(self) -> None:
        """Enter that a probe switched itself off. The recorder left a gap for its reports; the probe is the reason for
        unknown facts."""
        if self.missing is Unknown.LOST:
            self.missing = Unknown.PROBE
        for known in self.stores.values():
            if known.lost is Unknown.LOST:
                known.lost = Unknown.PROBE

    def _release(self, event: Sent | Free | Received) -> None:
        """Enter that an ended request's kept blocks, if any, are freed."""
        request = event.request or ""
        end = self.kept.pop(request, None)
        if end is not None and (end.connector_id, "save") in self.transfer_ends:
            self._end(request, end, "save", event)

    def _begin(self, plan: Plan, direction: str) -> None:
        """Enter the start of a numbered transfer."""
        job = plan.connector_id, plan.transfer_id or 0
        self.jobs[job] = plan
        ends = self.transfer_ends[plan.connector_id, direction]
        ends.open.pop(plan.request or "", None)  # the same load that its allocation announced
        ends.begin(job, plan)
        self._open(plan, plan.blocks_ids or ())
        for block, given in self.given_since_left(plan).items():
            if not self.has_run_since(given):
                self.contested.setdefault(job, (block, given))  # it may be waited for before the step runs

    def _end(self, key: Job | str, began: Event, direction: str, event: Event) -> None:
        """Enter the end of a transfer. Its time is measured up to the previous event: this one may be a jump of the clock."""
        took_ns = max(0, self.time.now_ns - self.time.of(began))
        self.transfer_ends[began.connector_id, direction].end(key, event, took_ns)

    def _enter_store(self, event: Store) -> None:
        self.storing.add(event.connector_id)

    def _stored(self, event: StorePlan) -> None:
        if not event.count:
            return  # the connector reported a full store
        keys = self.keys(event.connector_id)
        if event.chunk_keys is None:
            keys.unnamed = True
        else:
            keys.stored(event.chunk_keys)

    def _contest(self, event: Event, blocks: Iterable[int], *, are_new: bool = False) -> None:
        """Note open transfers of other requests over blocks allocated to this one, unless the other requests also hold the
        block. Blocks that `are_new` come from the pool, not from its prefix cache: no other request can hold them."""
        for block in blocks:
            for owner, transfer in self.transfers.get(block, {}).items():
                table = self.tables.get(owner)
                holds = table is not None and table.holds(block)
                if owner == event.request or holds is True:
                    continue
                key = (transfer.job if isinstance(transfer, Plan) else None) or owner
                if owner in self.unknown_tables or (holds is None and not are_new):
                    self.undecided.add(key)
                else:
                    self.contested.setdefault(key, (block, event))

    def _settle(self, key: Job | str) -> None:
        """Enter that a transfer has ended, or is waited for."""
        self.contested.pop(key, None)
        self.undecided.discard(key)

    def _leave(self, event: Event) -> None:
        """Enter that a request frees its blocks. A child of a MultiConnector may report this again."""
        request = event.request or ""
        self.tables.pop(request, None)
        self.unknown_tables.discard(request)
        self.left.setdefault(request, event)

    def _open(self, event: Event, blocks: Iterable[int]) -> None:
        request = event.request or ""
        if request not in self.tables and request not in self.met and self.missing is not None:
            self.unknown_tables.add(request)
        for block in blocks:
            if block != NULL_BLOCK:
                self.transfers.setdefault(block, {})[request] = event

    def _close(self, event: Event, blocks: Iterable[int]) -> None:
        for block in blocks:
            held = self.transfers.get(block, {})
            if held.get(event.request or "") is event:
                del held[event.request or ""]
                if not held:
                    del self.transfers[block]


_ENTER = handlers(Engine)
_OF_ANY_ROLE = (
    Kind.LOAD, Kind.KEY, Kind.HEARTBEAT, Kind.BLOCK_CHECK, Kind.FREE, Kind.READ, Kind.XFER, Kind.NOTIFICATION, UNFAMILIAR,
)  # fmt: skip
