from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Read, Xfer, XferOp, XferState
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class LateRead(EngineRule[Read | Xfer]):
    """A request's blocks were read after they had been released.

    Invariant: no read of a request's blocks by another instance after their lease has expired or they were freed, in the
    order of one recorder or log; and no write of them to another instance by the engine itself ends after they were given
    back, whatever they were given back for.

    Source: freed blocks belong to others; a later read must fail the request that reads. The incident is
    aws-do-eks #84 (https://github.com/aws-samples/aws-do-eks/pull/84). An engine that writes reads its own blocks as long as
    a write is under way. Needs a log, or a probe that sees readers' reports on the engine that prefills (NIXL's pull), or
    its writes (NIXL's push, Mooncake, MoRIIO). Which request has read them is known where the other engine is recorded, too
    (`stale-handoff`). That the blocks had been given to another request by then is known where block ids are recorded, and
    the workers report with the scheduler's recorder: otherwise a contract was broken, and what was read is not known.
    """

    id = "late-read"
    severity = Severity.WRONG_OUTPUT
    harm_may_be_unknown = True
    classes = ("C16",)
    hint = (
        "The lease is shorter than the reader's queue: make it longer, and let the reader check what it has read. Or the"
        " engine gives its blocks back while it writes them: none may be given back while a write is open."
    )
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
            return OK  # it is heard again
        late_s = round((event.start_ns - freed.end_ns) / 1e9, 3)
        numbers = {"late_s": late_s, "expired": bool(freed.lease_expired)}
        if pair.given_out is None:
            return Drift(numbers, [freed, event], severity=Severity.BROKEN_CONTRACT)
        return Drift(numbers, [freed, pair.given_out, event])

    def template(self, finding: Finding) -> str:
        text = "At {0} the request's blocks were given back: {why}. "
        if "state" in finding.numbers:
            if len(finding.witness) > 2:
                text += "At {1} another request was given some of them. "
            return (
                text
                + "The engine's own write of them to another one ended ({state}) {late_s} seconds after that release."
            )
        if len(finding.witness) > 2:
            text += "At {1} another request was given some of them. "
            return text + "At {2}, {late_s} seconds after they were given back, another instance read them."
        return text + "At {1}, {late_s} seconds later, another instance read them."

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"why": "their lease had expired" if finding.numbers["expired"] else "the request was over"}


def _judge_write(event: Xfer, engine: Engine) -> Judgement:
    """Whether the blocks were given back while the engine itself was writing them. One that fails may have failed before it
    was posted."""
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
    numbers = {"late_s": late_s, "expired": pair.expired is not None, "state": event.xfer_state}
    if pair.given_out is None or has_failed:
        return Drift(numbers, [released, event], severity=Severity.BROKEN_CONTRACT)
    return Drift(numbers, [released, pair.given_out, event])
