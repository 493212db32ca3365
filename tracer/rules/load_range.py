from __future__ import annotations

from tracer.account import Account
from tracer.events import Event, LoadPlan
from tracer.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from tracer.rules import RequestRule
from tracer.semconv import Kind


class LoadRange(RequestRule):
    """The connector plans to load beyond what was allocated for it.

    Invariant: a load's end <= c + x, where c are the computed tokens of the lookup and x the external tokens of the
    allocation; one more on a full hit, whose last token is computed again.

    A load may begin before c, at the start of a chunk. Source: vLLM, `Scheduler.schedule` allocates blocks for c + x
    tokens and counts them as computed; the incident is vLLM #56701 (https://github.com/vllm-project/vllm/issues/56701).
    Needs a probe that reads plans, and every event since the lookup.
    """

    id = "load-range"
    severity = Severity.WRONG_OUTPUT
    classes = ("C5",)
    kinds = frozenset({Kind.LOAD_PLAN})
    hint = "Lookup and load disagree about chunks: one rounds up where the other rounds down, or a window is counted twice."

    def judge(self, event: Event, account: Account) -> Judgement:
        assert isinstance(event, LoadPlan)
        if event.start is None:
            return None
        alloc = account.books.allocs.get(event.connector_id)
        lookup = account.last_lookup(event.connector_id)
        if not account.complete or alloc is None or lookup is None or event.epoch != account.epoch:
            return Verdict.UNKNOWN
        if not alloc.allocated:
            return None  # unselected-load tells it
        end, most = event.start + event.count, lookup.computed + alloc.allocated
        if end <= most + (most + 1 == lookup.total):
            return Verdict.OK
        numbers = {"computed": lookup.computed, "allocated": alloc.allocated, "end": end, "at_most": most}
        return Drift(numbers, [lookup, alloc, event])

    def explain(self, finding: Finding) -> str:
        lookup, alloc, plan = finding.witness
        n = finding.numbers
        return (
            f"At {lookup.label} {n['computed']} tokens were computed, and at {alloc.label} ({clock(alloc.at_ns)})"
            f" {n['allocated']} external tokens were allocated: {n['at_most']} in all. At {plan.label} the connector"
            f" plans to load up to token {n['end']}."
        )
