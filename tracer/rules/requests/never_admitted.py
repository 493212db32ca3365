"""never-admitted: a request is looked up for minutes and gets no blocks."""

from __future__ import annotations

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Severity
from kvtrail.tracer.rules import DeadlineRule, Pending


class NeverAdmitted(DeadlineRule):
    """A request is looked up and gets no blocks for minutes.

    Invariant: a request with a number as the answer to its lookup is given blocks, or ends, within 600 seconds in which the
    scheduler had a slot and blocks for it, or nothing else to do.

    vLLM looks a request up when its turn has come; it then waits for blocks alone. While others run, load, or hold blocks for
    another engine, these may still come. Source: vLLM, `Scheduler.schedule`; the incident is vLLM #42371
    (https://github.com/vllm-project/vllm/issues/42371). Needs every event of the request.
    """

    id = "never-admitted"
    severity = Severity.HANG
    classes = ("C12",)
    hint = "The blocks that it waits for are held by requests that give nothing back: look for their findings."
    after_s = 600.0
    """How long a request may wait for blocks after its first lookup of the epoch while nothing else was to be done."""
    explanation = (
        "At {0:epoch} the request was looked up for the first time, with {computed} of {total} tokens computed. {waited_s}"
        " seconds later it has been given no blocks. For {counted_s} of them the scheduler could have admitted it."
    )

    def pending(self, account: Account, engine: Engine) -> Pending | None:
        asked = account.evidence.asked
        if asked is None or account.evidence.deferred is not None or account.ended_ns is not None:
            return None
        drift = Drift({"computed": asked.computed, "total": asked.total}, [asked])
        return Pending(asked, drift, self.after_s, engine.clocks.spare)
