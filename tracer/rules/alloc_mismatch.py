from __future__ import annotations

from tracer.account import Account
from tracer.events import Alloc, Event
from tracer.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from tracer.rules import RequestRule
from tracer.semconv import Kind


class AllocMismatch(RequestRule):
    """The scheduler allocated for other tokens than the lookup returned.

    Invariant: x is 0 or e, where x are the external tokens of the allocation and e is the same connector's last
    answer in the same epoch.

    x = 0 after e > 0 is legal: the answer was discarded (`skip_reading_prefix_cache`, another child of a
    MultiConnector, a second call after an asynchronous load). Source: vLLM, `Scheduler.schedule` hands the lookup's
    answer on to `update_state_after_alloc`. Needs every event of the request since its last lookup.
    """

    id = "alloc-mismatch"
    severity = Severity.CRASH
    classes = ("C1",)
    kinds = frozenset({Kind.ALLOC})
    hint = (
        "Something between lookup and allocation changed the number: a scheduler plug-in, a wrapper around the"
        " connector, or a lookup made for another request under the same id."
    )

    def judge(self, event: Event, account: Account) -> Judgement:
        assert isinstance(event, Alloc)
        if not account.complete:
            return Verdict.UNKNOWN
        if event.allocated == 0:
            return None
        lookup = account.last_lookup(event.connector_id) if event.epoch == account.epoch else None
        if lookup is None:
            return Verdict.UNKNOWN
        if event.allocated == lookup.returned:
            return Verdict.OK
        return Drift({"returned": lookup.returned, "allocated": event.allocated}, [lookup, event])

    def explain(self, finding: Finding) -> str:
        lookup, alloc = finding.witness
        n = finding.numbers
        return (
            f"Let {lookup.label} = the lookup at {clock(lookup.at_ns)}, the last before the allocation, which returned"
            f" {n['returned']} tokens. At {alloc.label} ({clock(alloc.at_ns)}) the scheduler allocated {n['allocated']}"
            " external tokens."
        )
