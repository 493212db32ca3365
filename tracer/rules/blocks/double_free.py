from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Refcount, Unlock
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class DoubleFree(RequestRule[Refcount | Unlock]):
    """Something was released more often than it was acquired.

    Invariant: references >= 0 and pins >= 0 of every chunk; unlocked <= locked of every request.

    LMCache sets a negative count back to 0 and warns: afterwards the counter looks fine, but the chunk may be given to
    two owners. Source: reference counting; the incidents are LMCache #3381
    (https://github.com/LMCache/LMCache/issues/3381) and #4523 (https://github.com/LMCache/LMCache/pull/4523). Needs the
    event alone for a count, every event of the request for locks.
    """

    id = "double-free"
    severity = Severity.WRONG_OUTPUT
    classes = ("C14",)
    hint = "Two paths give the same thing back: an error path and the regular one, or two that each believe to own it."
    needs_history = False

    def judge(self, event: Refcount | Unlock, account: Account) -> Judgement:
        if isinstance(event, Refcount):
            counts = {"references": event.refs, "pins": event.pins}
            negative = {name: count for name, count in counts.items() if count is not None and count < 0}
            return Drift({"key": event.chunk_key, **negative}, [event]) if negative else OK
        if account.missing is not None:
            return account.missing
        held = account.evidence.locks
        return OK if event.locks <= held else Drift({"held": held, "unlocked": event.locks}, [event])

    def template(self, finding: Finding) -> str:
        if "unlocked" in finding.numbers:
            return "At {0} {unlocked} chunks were unlocked for the request, of which {held} were locked."
        return "At {0} chunk {chunk} had {counts}."

    def values(self, finding: Finding) -> dict[str, Any]:
        n = finding.numbers
        counts = " and ".join(f"{n[name]} {name}" for name in ("references", "pins") if name in n)
        return {"chunk": n.get("key") or "(unnamed)", "counts": counts}
