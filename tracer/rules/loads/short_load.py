from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Load, RequestEnd, Schedule, Xfer, XferOp, XferState
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule

NOT_ITS_OWN = {"aborted", "error"}
"""The outcomes of a request that others have ended."""


class ShortLoad(RequestRule[Load | Schedule | RequestEnd | Xfer]):
    """A load brought fewer tokens than promised and reported no error.

    Invariant: a load's tokens = those it was meant to bring, on every rank, or the load is reported as failed
    (`get_block_ids_with_load_errors`, `failed_recving`) before the request runs on or comes to its own end.

    With asynchronous scheduling the next step is scheduled before the workers' report, so the one after it counts. What vLLM
    has computed itself need not be brought, though it is a part of a chunk. A request that is aborted or fails in
    the step of the load is not judged, nor is one if its engine dies in it: the failure decides these. A load from another
    engine is short, too, if it is reported as received and one of its reads (`kv.xfer`) has failed and was not begun again,
    while no load of the request was ever reported as failed. Source: vLLM,
    `Scheduler._handle_invalid_blocks` recomputes what is reported; what is not, is taken for computed. The incidents are
    LMCache #1770 (https://github.com/LMCache/LMCache/issues/1770) and vllm-ascend #10561
    (https://github.com/vllm-project/vllm-ascend/issues/10561). Needs a load that says what was expected of it.
    """

    id = "short-load"
    severity = Severity.WRONG_OUTPUT
    classes = ("C7", "C8")
    hint = (
        "The chunk was evicted between lookup and load, or its key was computed otherwise. Pin it, or report the error."
    )
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

    def template(self, finding: Finding) -> str:
        if "failed_blocks" in finding.numbers:
            blocks = " of {failed_blocks} blocks" if finding.numbers["failed_blocks"] else ""
            reason = " ({reason})" if finding.numbers["reason"] else ""
            return (
                f"At {{0}} a read{blocks} from another engine failed on rank {{rank}}{reason}."
                " Its load was reported as received at {1}, without an error, and at {2} the request went on."
            )
        text = "The load at {0:epoch} was meant to bring {expected} tokens and brought {loaded}."
        if len(finding.witness) > 1:
            text += " At {1.label} the request went on, and no load error had been reported."
        return text


def _failed_read(event: Load | Schedule | RequestEnd | Xfer, account: Account) -> Judgement:
    """The request runs on what it has received of another engine, and a read of that has failed. Which of the two is heard
    first does not matter: a failure that is reported is reported before the request runs."""
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
    numbers = {"failed_blocks": failed.blocks_count, "rank": failed.rank, "reason": failed.reason}
    return Drift(numbers, [failed, received, step])


def _went_on(short: Load, event: Schedule | RequestEnd, account: Account) -> Judgement:
    """The request runs or ends after a load that brought too little."""
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
    """The tokens that the load had to bring: what it was meant to, without what vLLM has already. Connectors count whole
    chunks."""
    allocated = max((alloc.allocated for alloc in account.evidence.allocs.values()), default=0)
    expected = load.expected or 0
    return min(expected, allocated) if allocated and load.epoch == account.epoch else expected


def _numbers(load: Load, account: Account) -> dict[str, Any]:
    return {"expected": wanted(load, account), "loaded": load.count, "rank": load.rank}
