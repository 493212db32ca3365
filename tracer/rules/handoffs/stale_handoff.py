"""stale-handoff: a request has received blocks that the engine that prefilled had given back."""

from __future__ import annotations

from kvtrail.tracer.events.events import Read, Received, Xfer, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class StaleHandoff(EngineRule[Read | Received | Xfer]):
    """A request has received KV from blocks that the other engine had given back before.

    Invariant: if a request receives a hand-off, the report of its reader reaches the engine that prefilled before that one
    gives the blocks back, and before it is started again; where that engine writes itself, its writes have ended before.

    Order is known by messages alone: the release and the reader's report are recorded by one recorder, and the load is that
    of the same hand-off. Where that recorder is also the scheduler's, and block ids are recorded, the finding says whether
    another request had been given the blocks by then. Only then, or where the engine was started again, another content is
    known to have been read: otherwise a contract was broken, and `byte-drift` says whether the bytes were wrong.

    Source: vLLM, a read of blocks that were released succeeds and no counter of the reading engine moves; the incidents
    are vLLM #21570
    (https://github.com/vllm-project/vllm/issues/21570) and aws-do-eks #84
    (https://github.com/aws-samples/aws-do-eks/pull/84). Needs the spans of both engines, and a probe that sees readers'
    reports or writes on the one that prefills (NIXL).
    """

    id = "stale-handoff"
    severity = Severity.WRONG_OUTPUT
    harm_may_be_unknown = True
    classes = ("C16",)
    needs_history = False
    hint = (
        "The lease of the prefill engine (`kv_lease_duration`) ran out while the request waited in the other engine's queue,"
        " or its heartbeats did not arrive. Make the lease longer than the queue."
    )
    mitigation = "With `guard: heal` on both engines such a load is computed again."

    restarted = (
        "Engine {giver} kept the blocks of request {other} for another one at {0}, and was started again. At {1} a reader"
        " reported to its new launch that it had read them. This request received them ({2}): what they hold is not its KV."
    )

    def judge(self, event: Read | Received | Xfer, engine: Engine) -> Judgement:
        by_giver = isinstance(event, Read) or (isinstance(event, Xfer) and event.xfer_op == XferOp.WRITE)
        pair = engine.handoffs.given_by(event) if by_giver else engine.handoffs.taken_by(event)
        if pair is None:
            return None
        late, received = pair.late, [(taker.received, taker.recomputed) for taker in pair.received]
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
        # Without the lease's end somebody has read in time, though that report may be lost. A write's end is its own.
        is_read = isinstance(late, Read)
        several = bool(pair.reports) and len(pair.takers) > 1
        if before is pair.released and ((is_read and pair.expired is None) or several):
            return Unknown.ORDER  # the late report is another's, or has come twice
        numbers = {
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

    def template(self, finding: Finding) -> str:
        if finding.witness[0].kind == Kind.HANDOFF:
            return self.restarted
        why = "the lease had run out" if finding.numbers["expired"] else "the request was over"
        text = f"Engine {{giver}} gave the blocks of request {{other}} back at {{0}}: {why}. "
        report = "a reader reported that it had read them. This request received them"
        if any(each.kind == Kind.XFER for each in finding.witness):
            report = "its own write of them to the other engine ended. This request received them"
        match finding.numbers["given_out"]:
            case True:
                return text + f"At {{1}} another request was given some of them, and at {{2}} {report} ({{3}})."
            case False:
                end = ": nobody else had been given any of them by then, and they still held what was read."
                return text + f"At {{1}} {report} ({{2}}){end}"
        return text + f"At {{1}} {report} ({{2}}): they may have been another request's by then."
