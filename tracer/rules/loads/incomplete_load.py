from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import (
    Alloc,
    Load,
    Notification,
    Received,
    RequestEnd,
    Schedule,
    Xfer,
    XferOp,
    XferState,
)
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule, RequestRule

NOT_ITS_OWN = {"aborted", "error"}
"""The outcomes of a request that was ended by its caller or by an error."""


class IncompleteLoad(RequestRule[Load | Schedule | RequestEnd | Xfer]):
    """Finds a load that moved fewer tokens than expected (`short`)."""

    needs_history = False

    def judge(self, event: Load | Schedule | RequestEnd | Xfer, account: Account) -> Judgement:
        if (failed := _failed_read(event, account)) is not None:
            return failed
        if type(event) is Xfer:
            return None
        evidence, elsewhere = account.evidence, account.evidence.short_elsewhere
        if type(event) is Load:
            if event.expected is None:
                return None
            if event.count >= wanted(event, account):
                return OK
            if event.error is not None:
                return Drift(_numbers(event, account), [event])
            if event.recorder != account.recorder and evidence.ended is not None:
                return _went_on(event, evidence.ended, account)
            return None
        if type(event) is RequestEnd and elsewhere is not None:
            return _went_on(elsewhere, event, account)
        short = evidence.short
        if type(event) is Schedule and event.scheduler_async and not evidence.ran_ahead:
            return None  # it was scheduled before the workers could report the load's error
        return None if short is None else _went_on(short, event, account)


MAX_LOADS = 10_000
"""Maximum number of remembered open loads with reads."""


class Reads:
    """The reads that this process has recorded for open asynchronous loads.

    Attributes:
        readers: connectors, by name, with workers in this process that have recorded reads.
    """

    def __init__(self) -> None:
        self.readers: set[str] = set()
        self._open: BoundedDict[str, tuple[Alloc, list[Xfer]]] = BoundedDict(MAX_LOADS)
        """By request: its load, and the load's reads that have not ended."""

    def of(self, request: str, load: Alloc) -> list[Xfer] | None:
        """The reads for a load that have not ended. None if neither a read nor a notice that none is needed was recorded."""
        known = self._open.get(request)
        return known[1] if known is not None and known[0] is load else None

    def _enter_xfer(self, event: Xfer, engine: Engine) -> None:
        if event.xfer_op != XferOp.READ:
            return
        self.readers.add(event.connector)
        if (reads := self._begun(event, engine)) is None:
            return
        if event.xfer_state == XferState.POSTED:
            reads.append(event)
        else:  # a connector that ends all of a request's reads at once need not name them
            ended = [each for each in reads if (each.rank, each.peer_rank) == (event.rank, event.peer_rank)]
            reads[:] = [each for each in reads if each not in ended[:1]] if ended else []

    def _enter_notification(self, event: Notification, engine: Engine) -> None:
        self._begun(event, engine)  # that nothing is needed, or that another engine is to write

    def _enter_received(self, event: Received, engine: Engine) -> None:
        self._open.pop(event.request or "", None)

    def _begun(self, event: Xfer | Notification, engine: Engine) -> list[Xfer] | None:
        """The reads for the event's load that have not ended; None if it has none."""
        request = event.request or ""
        load = engine.loads.get(request)
        if load is None:
            return None
        if (reads := self.of(request, load)) is None:
            self._open[request] = load, (reads := [])
        return reads


class IncompleteReads(EngineRule[Received]):
    """Finds a load that is reported as received before its reads have ended (`unread`)."""

    State = Reads

    def judge(self, event: Received, engine: Engine) -> Judgement:
        request, known = event.request or "", engine.states[Reads]
        alloc = engine.loads.get(request)
        if event.failed or alloc is None or request not in engine.met or alloc.connector not in known.readers:
            return None
        if any(error.sequence > alloc.sequence for error in engine.invalid.values()):
            return None
        reads = known.of(request, alloc)
        if reads is None and not alloc.has(Capability.RECEIVES_ONCE):
            return None  # it may have loaded from a store of its own
        if reads is None:
            return Drift({"where": "unread", "allocated": alloc.allocated, "reads": 0}, [alloc, event])
        if not reads:
            return OK
        numbers = {
            "where": "unread",
            "allocated": alloc.allocated,
            "reads": len(reads),
            "rank": reads[0].rank,
        }
        return Drift(numbers, [reads[0], event])


def _failed_read(event: Load | Schedule | RequestEnd | Xfer, account: Account) -> Judgement:
    """Judge a request that runs on KV from another engine although a read of it has failed. The order of the two events does
    not matter: a reported failure is reported before the request runs."""
    evidence = account.evidence
    received = evidence.received
    if received is None or received.failed or evidence.failed_ever or evidence.loading is not None:
        return None
    if type(event) is Schedule and evidence.schedule is None:
        failed, step = evidence.failed_read, event
    elif type(event) is Xfer and evidence.schedule is not None and evidence.failed_read is None:
        is_failed = event.xfer_op == XferOp.READ and event.xfer_state == XferState.FAILED
        failed, step = event if is_failed else None, evidence.schedule
    else:
        return None
    if failed is None:
        return None
    if account.missing is not None:
        return account.missing
    numbers = {
        "where": "short",
        "failed_blocks": failed.blocks_count,
        "rank": failed.rank,
        "reason": failed.reason,
    }
    return Drift(numbers, [failed, received, step])


def _went_on(short: Load, event: Schedule | RequestEnd, account: Account) -> Judgement:
    """Judge a request that runs or ends after a load that moved too few tokens."""
    if short.error is not None or short.count >= wanted(short, account) or _fell(event, account):
        return None
    if account.missing is not None:
        return account.missing
    if short.recorder != event.recorder:
        if account.evidence.load_failed:
            return None
        if account.epoch:
            return Unknown.ORDER
    return Drift(_numbers(short, account), [short, event])


def _fell(event: Schedule | RequestEnd, account: Account) -> bool:
    """Whether the request was ended by its caller or by an error in the first step after its admission, or before it: an
    error of the load may have been on its way."""
    step = account.evidence.schedule
    ran_on = step is not None and account.begun is not None and step.computed > account.begun
    return type(event) is RequestEnd and event.outcome in NOT_ITS_OWN and not ran_on


def wanted(load: Load, account: Account) -> int:
    """The tokens that the load had to move: the intended ones, without those that vLLM already has. Connectors count whole
    chunks."""
    allocated = max((alloc.allocated for alloc in account.evidence.allocs.values()), default=0)
    expected = load.expected or 0
    return min(expected, allocated) if allocated and load.epoch == account.epoch else expected


def _numbers(load: Load, account: Account) -> dict[str, Any]:
    return {"where": "short", "expected": wanted(load, account), "loaded": load.count, "rank": load.rank}
