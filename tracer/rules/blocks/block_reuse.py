from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event, Flush, Job, Plan, Received, Schedule, StorePlan, TransferEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


@dataclass(slots=True)
class Contested:
    """Open transfers over blocks that were given to other requests, until they end or are waited for.

    Attributes:
        given: the block, and the event that gave it. By the transfer, if it has a number, or by request for an asynchronous
            load.
        undecided: those of which it is not known who held the block.
    """

    given: dict[Job | str, tuple[int, Event]] = field(default_factory=dict)
    undecided: set[Job | str] = field(default_factory=set)

    def _enter_alloc(self, event: Alloc, engine: Engine) -> None:
        if engine.transfers and event.blocks_ids is not None:
            self._give(event, event.blocks_ids, engine)

    def _enter_schedule(self, event: Schedule, engine: Engine) -> None:
        """A table that is reported again gives nothing. Blocks that a step adds come from the pool, and not from its prefix
        cache: another request holds none that it may have given back."""
        if engine.transfers and event.blocks_ids is not None:
            is_first = event.request in engine.admitted
            if is_first or not event.blocks_whole:
                self._give(event, event.blocks_ids, engine, are_new=not is_first)

    def _give(self, event: Alloc | Schedule, blocks: Iterable[int], engine: Engine, *, are_new: bool = False) -> None:
        for block in blocks:
            for owner, transfer in engine.transfers.get(block, {}).items():
                table = engine.tables.get(owner)
                holds = table is not None and table.holds(block)
                if owner == event.request or holds is True:
                    continue
                key = (transfer.job if isinstance(transfer, Plan) else None) or owner
                if owner in engine.unknown_tables or (holds is None and not are_new):
                    self.undecided.add(key)
                else:
                    self.given.setdefault(key, (block, event))

    def _enter_load_plan(self, event: Plan, engine: Engine) -> None:
        """The block may have been given out earlier in the step in which the transfer is planned. It may be waited for before
        the step runs."""
        if event.transfer_id is None:
            return
        for block, given in engine.given_since_left(event).items():
            if not engine.has_run_since(given):
                self.given.setdefault((event.connector_id, event.transfer_id), (block, given))

    _enter_store_plan = _enter_load_plan

    def _enter_received(self, event: Received, engine: Engine) -> None:
        self._settle(event.request or "")

    def _enter_transfer_end(self, event: TransferEnd | Flush, engine: Engine) -> None:
        self._settle(event.job)

    _enter_flush = _enter_transfer_end

    def _settle(self, key: Job | str) -> None:
        self.given.pop(key, None)
        self.undecided.discard(key)


class BlockReuse(EngineRule[TransferEnd | Received]):
    id = "block-reuse"
    State = Contested

    def judge(self, event: TransferEnd | Received, engine: Engine) -> Judgement:
        if type(event) is TransferEnd:
            key: Job | str = event.job
            transfer: Alloc | Plan | None = engine.jobs.get(event.job)
        else:
            key = event.request or ""
            transfer = engine.loads.get(key)
        if transfer is None:
            return engine.missing if type(event) is TransferEnd or event.request not in engine.met else None
        contested = engine.states[Contested]
        if key in contested.undecided:
            return engine.missing
        if key not in contested.given:
            return OK if transfer.blocks_ids is not None else Unknown.LEVEL
        block, given = contested.given[key]
        what = "store" if type(transfer) is StorePlan else "load"
        numbers = {"block": block, "other": given.request, "transfer": what}
        return Drift(numbers, [transfer, given, event], connector=transfer.connector)
