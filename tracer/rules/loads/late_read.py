from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Read
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class LateRead(EngineRule[Read]):
    """A request's blocks were read after they had been released.

    Invariant: no read of a request's blocks by another instance after their lease has expired or they were freed, in the
    order of one recorder or log.

    Source: freed blocks belong to others; a later read must fail the request that reads. The incident is
    aws-do-eks #84 (https://github.com/aws-samples/aws-do-eks/pull/84). Needs a log, or a probe that sees readers' reports on
    the engine that prefills (NIXL's pull). Which request has read them is known where the other engine is recorded, too
    (`stale-handoff`). That the blocks had been given to another request by then is known where block ids are recorded, and
    the workers report with the scheduler's recorder: otherwise a contract was broken, and what was read is not known.
    """

    id = "late-read"
    severity = Severity.WRONG_OUTPUT
    harm_may_be_unknown = True
    classes = ("C16",)
    hint = "The lease is shorter than the reader's queue: make it longer, and let the reader check what it has read."
    needs_history = False

    def judge(self, event: Read, engine: Engine) -> Judgement:
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
        if len(finding.witness) > 2:
            text += "At {1} another request was given some of them. "
            return text + "At {2}, {late_s} seconds after they were given back, another instance read them."
        return text + "At {1}, {late_s} seconds later, another instance read them."

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"why": "their lease had expired" if finding.numbers["expired"] else "the request was over"}
