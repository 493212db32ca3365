from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Read, Received, Xfer, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules.rule import EngineRule, PairRule


class StaleHandoff(PairRule[Read | Received | Xfer]):
    """Finds requests that received released blocks (`taken`)."""

    needs_history = False

    def judge(self, event: Read | Received | Xfer, engine: Engine) -> Judgement:
        by_giver = isinstance(event, Read) or (isinstance(event, Xfer) and event.xfer_op == XferOp.WRITE)
        pair = engine.handoffs.given_by(event) if by_giver else engine.handoffs.taken_by(event)
        if pair is None:
            return None
        late, received = pair.late, [(load, place in pair.recomputed) for place, load in pair.loads.items()]
        if isinstance(event, Received):
            if not engine.handoffs.receives(event):
                return None
            received = [(event, engine.handoffs.is_recomputed(event))]
        elif isinstance(event, Read) or (by_giver and event.xfer_state == XferState.DONE):
            if late is not None:
                return None  # a second late report adds nothing
            if not engine.handoffs.is_late(event):
                return None if pair.released is None else Unknown.ORDER
            late = event
        else:
            return None
        if late is None or not received:
            return None
        before = pair.given if pair.is_of_another_launch(late) else pair.released
        if before is None:
            return None
        # If the lease has not ended, a reader read in time, though its report may be lost. A write's end is its own.
        is_read = isinstance(late, Read)
        several = bool(pair.reports) and len(pair.takers) > 1
        if before is pair.released and ((is_read and pair.expired is None) or several):
            return Unknown.ORDER  # the late report may be another reader's, or a duplicate
        numbers = {
            "where": "taken",
            "giver": late.engine,
            "other": late.request,
            "expired": before is pair.expired,
            "late_s": round((late.start_ns - before.end_ns) / 1e9, 3),
            "given_out": pair.is_given_out,
        }
        given_out = [] if pair.given_out is None else [pair.given_out]
        witnesses = [before, *given_out, late]
        severity = None if pair.is_given_out or before is pair.given else Severity.BROKEN_CONTRACT
        return tuple(
            Drift(numbers, [*witnesses, each], healed=recomputed, severity=severity) for each, recomputed in received
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        return _sentences(finding)


class ReadAfterRelease(EngineRule[Read | Xfer]):
    """Finds requests whose released blocks were read, from the sending engine's events alone (`given`)."""

    needs_history = False

    def judge(self, event: Read | Xfer, engine: Engine) -> Judgement:
        if isinstance(event, Xfer):
            return _judge_write(event, engine)
        pair = engine.handoffs.given_by(event)
        freed = None if pair is None else pair.freed
        if pair is None or freed is None:
            return OK if engine.missing is None else engine.missing
        if freed.recorder != event.recorder:
            return Unknown.ORDER
        if freed.sequence > event.sequence:
            return OK  # the same event arrives again
        late_s = round((event.start_ns - freed.end_ns) / 1e9, 3)
        numbers = {"where": "given", "late_s": late_s, "expired": bool(freed.lease_expired)}
        if pair.given_out is None:
            return Drift(numbers, [freed, event], severity=Severity.BROKEN_CONTRACT)
        return Drift(numbers, [freed, pair.given_out, event])

    def values(self, finding: Finding) -> dict[str, Any]:
        return _sentences(finding)


def _sentences(finding: Finding) -> dict[str, str]:
    writes = any(each.kind == Kind.XFER for each in finding.witness)
    report = "its own write of them to the other engine ended" if writes else "a reader reported that it had read them"
    why = "the lease had run out" if finding.numbers["expired"] else "the request was over"
    return {"report": report, "why": why}


def _judge_write(event: Xfer, engine: Engine) -> Judgement:
    """Whether the blocks were freed while the engine itself was writing them. A failed write may have failed before it was
    posted."""
    pair = engine.handoffs.given_by(event)
    if event.xfer_op != XferOp.WRITE or event.xfer_state == XferState.POSTED or pair is None:
        return None
    released, has_failed = pair.released, event.xfer_state == XferState.FAILED
    if released is None:
        return OK if engine.missing is None else engine.missing
    if released.recorder != event.recorder:
        return Unknown.ORDER
    if not engine.handoffs.is_late(event) or (has_failed and not pair.is_open(event)):
        return None
    late_s = round((event.end_ns - released.end_ns) / 1e9, 3)
    numbers = {
        "where": "given",
        "late_s": late_s,
        "expired": pair.expired is not None,
        "state": event.xfer_state,
    }
    if pair.given_out is None or has_failed:
        return Drift(numbers, [released, event], severity=Severity.BROKEN_CONTRACT)
    return Drift(numbers, [released, pair.given_out, event])
