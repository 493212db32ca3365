from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Lookup, Received, Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


def synchronous_load(account: Account) -> Alloc | None:
    """The epoch's allocation for a load that was declared synchronous, if there is one and no other load. None under a
    MultiConnector: it passes each report to all of its children, so that it is not known which of them is at fault."""
    if len(account.evidence.connectors) > 1:
        return None
    taken = [alloc for alloc in account.evidence.allocs.values() if alloc.allocated]
    if account.evidence.loading is not None or account.evidence.received is not None or len(taken) != 1:
        return None
    lookup = account.last_lookup(taken[0].connector_id)
    return taken[0] if lookup is not None and not lookup.is_async and lookup.returned else None


class AsyncDeclaration(RequestRule[Lookup | Received | Schedule]):
    """A load does not run as its lookup declared: synchronously or asynchronously.

    Invariant: an answer of 0 tokens is synchronous; a request with an asynchronous load runs only after the load was
    received; a synchronous load is over when its step is, and is never reported as received.

    Source: vLLM, `KVConnectorBase_V1.get_num_new_matched_tokens` ("must be False if the first element is 0") and
    `Scheduler.schedule`, which lets such a request wait for the workers' report. The incident is vLLM #54301
    (https://github.com/vllm-project/vllm/pull/54301). Needs the lookup alone, or every event since the allocation.
    """

    id = "async-declaration"
    severity = Severity.CRASH
    classes = ("C20",)
    hint = "The flag is a constant of the connector. Make it depend on whether there is anything to load, and how."
    needs_history = False

    def judge(self, event: Lookup | Received | Schedule, account: Account) -> Judgement:
        if type(event) is Lookup:
            if not event.is_async or event.returned is None:
                return None
            return OK if event.answer else Drift({"returned": 0, "async": True}, [event])
        if type(event) is Received:
            if account.missing is not None:
                return account.missing
            alloc = synchronous_load(account)
            if alloc is None:
                return None
            return Drift({"allocated": alloc.allocated, "async": False}, [alloc, event], connector=alloc.connector)
        loading = account.evidence.loading
        if loading is None or event.epoch != account.epoch or account.evidence.load_failed:
            return None
        if account.missing is not None:
            return account.missing
        return Drift({"allocated": loading.allocated, "begins": event.computed}, [loading, event])

    def template(self, finding: Finding) -> str:
        match finding.numbers.get("async"):
            case True:
                return (
                    "At {0} the connector answered that there is nothing to load, and that it loads it asynchronously."
                )
            case False:
                return (
                    "At {0} {allocated} tokens were allocated for a load that the lookup had declared synchronous. At {1} its"
                    " end is reported as that of an asynchronous one: the request may have run without it."
                )
            case _:
                return (
                    "At {0} {allocated} tokens began to load asynchronously. At {1.label} the request runs from token"
                    " {begins}, and the load has not been received."
                )
