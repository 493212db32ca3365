from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import Event, Refcount, Unlock
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


class DoubleFree(RequestRule[Event]):
    """Something was given back more often than it was taken.

    Invariant: references >= 0 and pins >= 0 of every chunk; unlocked <= locked of every request.

    LMCache sets a negative count back to 0 and warns: the counter looks fine afterwards, the chunk may be given to two.
    Source: reference counting; the incidents are LMCache #3381 (https://github.com/LMCache/LMCache/issues/3381) and #4523
    (https://github.com/LMCache/LMCache/pull/4523). Needs the event alone for a count, every event of the request for locks.
    """

    id = "double-free"
    severity = Severity.WRONG_OUTPUT
    classes = ("C14",)
    kinds = frozenset({Kind.REFCOUNT, Kind.UNLOCK})
    hint = "Two paths give the same thing back: an error path and the regular one, or two that each believe to own it."

    def judge(self, event: Event, account: Account) -> Judgement:
        if isinstance(event, Refcount):
            counts = {"references": event.refs, "pins": event.pins}
            negative = {name: count for name, count in counts.items() if count is not None and count < 0}
            return Drift({"key": event.chunk_key, **negative}, [event]) if negative else Verdict.OK
        assert isinstance(event, Unlock)
        held = account.evidence.locks
        if event.locks <= held:
            return Verdict.OK if account.complete else Verdict.UNKNOWN
        return Drift({"held": held, "unlocked": event.locks}, [event]) if account.complete else Verdict.UNKNOWN

    def explain(self, finding: Finding) -> str:
        (event,) = finding.witness
        n = finding.numbers
        if "unlocked" in n:
            return (
                f"At {event.label} ({clock(event.at_ns)}) {n['unlocked']} chunks were unlocked for the request, of which"
                f" {n['held']} were locked."
            )
        counts = " and ".join(f"{n[name]} {name}" for name in ("references", "pins") if name in n)
        return f"At {event.label} ({clock(event.at_ns)}) chunk {n['key'] or '(unnamed)'} had {counts}."
