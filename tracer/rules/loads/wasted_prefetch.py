from __future__ import annotations

from kvtrail.tracer.events.events import Prefetch
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import RequestRule


class WastedPrefetch(RequestRule[Prefetch]):
    """The connector prefetches tokens that vLLM already has.

    Invariant: prefetched tokens <= ceil_k(h) - floor_k(c), where k is the chunk size, h the matched prefix and c the
    computed tokens of the lookup.

    A prefetch that began before the lookup knew c is legal. Source: arithmetic of chunks; the incident is LMCache #3490
    (https://github.com/LMCache/LMCache/issues/3490). Needs the lookup before it, a connector that reports prefetches, and
    its chunk size.
    """

    id = "wasted-prefetch"
    severity = Severity.WASTED_WORK
    classes = ("C10",)
    hint = "The prefetch takes the whole hit. Begin it at the chunk that holds the first token that is not computed."
    explanation = (
        "At {0} {computed} tokens were computed and {matched} matched, so at most {at_most} are worth fetching. At {1.label}"
        " {fetched} were fetched."
    )

    def judge(self, event: Prefetch, account: Account) -> Judgement:
        lookup, size = account.last_lookup(event.connector_id), event.chunk_size
        if lookup is None or lookup.matched is None or not size:
            return Unknown.PROBE
        most = max(0, -(-lookup.matched // size) * size - lookup.computed // size * size)
        if event.count <= most:
            return OK
        numbers = {"computed": lookup.computed, "matched": lookup.matched, "fetched": event.count, "at_most": most}
        return Drift(numbers, [lookup, event])
