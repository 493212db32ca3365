from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import Alloc, Event, Lookup, Received, Schedule
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


def synchronous_load(account: Account) -> Alloc | None:
    """The epoch's allocation for a load that was declared synchronous, if there is one and no other load."""
    taken = [alloc for alloc in account.evidence.allocs.values() if alloc.allocated]
    if account.evidence.loading is not None or account.evidence.received is not None or len(taken) != 1:
        return None
    lookup = account.last_lookup(taken[0].connector_id)
    return taken[0] if lookup is not None and not lookup.is_async and lookup.returned else None


class AsyncDeclaration(RequestRule[Event]):
    """What a lookup declares about the load, synchronous or not, is not what happens.

    Invariant: an answer of 0 tokens is synchronous; a request with an asynchronous load runs only after the load was
    received; a synchronous load is over when its step is, and is never reported as received.

    Source: vLLM, `KVConnectorBase_V1.get_num_new_matched_tokens` ("must be False if the first element is 0") and
    `Scheduler.schedule`, which lets such a request wait for the workers' report. The incident is vLLM #54301
    (https://github.com/vllm-project/vllm/pull/54301). Needs the lookup alone, or every event since the allocation.
    """

    id = "async-declaration"
    severity = Severity.CRASH
    classes = ("C20",)
    kinds = frozenset({Kind.LOOKUP, Kind.SCHEDULE, Kind.RECEIVED})
    hint = "The flag is a constant of the connector. Make it depend on whether there is anything to load, and how."

    def judge(self, event: Event, account: Account) -> Judgement:
        if isinstance(event, Lookup):
            if not event.is_async or event.returned is None:
                return None
            return Verdict.OK if event.returned else Drift({"returned": 0, "async": True}, [event])
        if isinstance(event, Received):
            if not account.complete:
                return Verdict.UNKNOWN
            alloc = synchronous_load(account)
            return None if alloc is None else Drift({"allocated": alloc.allocated, "async": False}, [alloc, event])
        assert isinstance(event, Schedule)
        loading = account.evidence.loading
        if loading is None or event.epoch != account.epoch or account.evidence.load_failed:
            return None
        if not account.complete:
            return Verdict.UNKNOWN
        return Drift({"allocated": loading.allocated, "begins": event.computed}, [loading, event])

    def explain(self, finding: Finding) -> str:
        *before, last = finding.witness
        if not before:
            return (
                f"At {last.label} ({clock(last.at_ns)}) the connector answered that there is nothing to load, and that it"
                " loads it asynchronously."
            )
        n = finding.numbers
        if n.get("async") is False:
            return (
                f"At {before[0].label} ({clock(before[0].at_ns)}) {n['allocated']} tokens were allocated for a load that the"
                f" lookup had declared synchronous. At {last.label} ({clock(last.at_ns)}) its end is reported as that of an"
                " asynchronous one: the request may have run without it."
            )
        return (
            f"At {before[0].label} ({clock(before[0].at_ns)}) {n['allocated']} tokens began to load asynchronously. At"
            f" {last.label} the request runs from token {n['begins']}, and the load has not been received."
        )
