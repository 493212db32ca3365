from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.cache_groups import groups_of
from kvtrail.tracer.events.events import Load, Store
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import Groups, RequestRule


class BlockShortage(RequestRule[Load | Store]):
    """A transfer named fewer KV blocks than its tokens fill.

    Invariant: n <= b * s, where n are the tokens of a load or store, b the distinct blocks it names and s the tokens that
    a block holds.

    Two ranges of tokens would share a block: what is stored for one is the KV of the other, and is wrong when it is
    loaded. Source: a block of vLLM belongs to one position of a request. Needs the event alone. Of several KV cache groups it
    is not known how many blocks each has.
    """

    id = "block-shortage"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.UNKNOWN
    classes = ("C4", "C5")
    hint = (
        "The connector's own list of a request's blocks has some twice, and is out of step with vLLM's. LMCache, 0.3.10 to"
        " 0.5.6 at least, keeps vLLM's own list when a request is resumed after a preemption; in the process of a single"
        " device vLLM's worker appends to the same list. Empty the store; until the connector copies the list, avoid"
        " preemptions."
    )
    needs_history = False
    explanation = (
        "At {0:epoch} the connector was to {what} the tokens {start} to {end}, which fill {need_blocks} blocks of"
        " {block_size}. It named {blocks_count} different blocks, so the KV of some tokens was taken for that of others."
    )

    def judge(self, event: Load | Store, account: Account) -> Judgement:
        if event.blocks_count is None or not event.block_size or len(groups_of(event.groups)) > 1:
            return None
        if event.count <= event.blocks_count * event.block_size:
            return OK
        numbers = {
            "start": event.start,
            "count": event.count,
            "blocks_count": event.blocks_count,
            "block_size": event.block_size,
            "need_blocks": -(-event.count // event.block_size),
        }
        return Drift(numbers, [event])

    def values(self, finding: Finding) -> dict[str, Any]:
        what = "load" if finding.witness[0].kind == Kind.LOAD else "store"
        return {"what": what, "end": finding.numbers["start"] + finding.numbers["count"]}
