from __future__ import annotations

from kvtrail.tracer.events.cache_groups import part_of_block
from kvtrail.tracer.events.events import LoadPlan
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import Groups, RequestRule


class LoadRange(RequestRule[LoadPlan]):
    """The connector plans to load beyond what was allocated for it.

    Invariant: a load's end <= c + x, where c are the computed tokens of the lookup and x the external tokens of the
    allocation; one more on a full hit, since its last token is computed again; the end of its block on a hit that ends within
    one, as it may with a recurrent KV cache group. Its keys are among those that the lookup claimed, where both name them.

    A load may begin before c, at the start of a chunk. Source: vLLM, `Scheduler.schedule` allocates blocks for c + x
    tokens and counts them as computed; the incident is vLLM #56701 (https://github.com/vllm-project/vllm/issues/56701).
    Needs a probe that reads plans, and every event since the lookup.
    """

    id = "load-range"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.FULL
    classes = ("C5",)
    hint = "Lookup and load disagree about chunks: one rounds up where the other rounds down, or a window is counted twice."

    def judge(self, event: LoadPlan, account: Account) -> Judgement:
        if event.start is None and event.chunk_keys is None:
            return None
        alloc = account.evidence.allocs.get(event.connector_id)
        lookup = account.last_lookup(event.connector_id)
        if alloc is None or lookup is None or event.epoch != account.epoch:
            return Unknown.UNSEEN
        if not alloc.allocated:
            return None  # unselected-load judges it
        end, most = (event.start or 0) + event.count, lookup.computed + alloc.allocated
        numbers = {"computed": lookup.computed, "allocated": alloc.allocated, "end": end, "at_most": most}
        size = part_of_block(event.groups, event.block_size)
        if event.start is not None and end > max(most + (most + 1 == lookup.total), -(-most // size) * size):
            return Drift(numbers, [lookup, alloc, event])
        claimed = lookup.chunk_keys
        unclaimed = [] if claimed is None else [key for key in event.chunk_keys or () if key not in claimed]
        if unclaimed:
            return Drift({**numbers, "unclaimed": unclaimed}, [lookup, alloc, event])
        return OK

    def template(self, finding: Finding) -> str:
        if "unclaimed" in finding.numbers:
            return (
                "At {2} the connector plans to load the chunk with key {unclaimed[0]}. It was not among those that the lookup"
                " at {0} claimed."
            )
        return (
            "At {0.label} {computed} tokens were computed, and at {1} {allocated} external tokens were allocated: {at_most}"
            " in all. At {2.label} the connector plans to load up to token {end}."
        )
