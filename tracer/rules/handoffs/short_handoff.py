"""short-handoff: a request loads more tokens than were handed over."""

from __future__ import annotations

from kvtrail.tracer.events.events import Alloc
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class ShortHandoff(EngineRule[Alloc]):
    """A request loads more tokens than the engine that prefilled it has computed.

    Invariant: c + x <= n at the allocation of a request that takes a hand-off, n the tokens that are handed over.

    Source: vLLM, `remote_num_tokens` of the `kv_transfer_params` is what the prefill engine had computed at the end
    (`NixlPullConnectorScheduler.request_finished`), and the lookup of the engine that decodes does not compare with it; the
    incident is vLLM #46357 (https://github.com/vllm-project/vllm/pull/46357), about the tokens that one side leaves to the
    other. Needs a lookup with its allocation, and `remote_num_tokens` on one of both sides.
    """

    id = "short-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("N11",)
    needs_history = False
    hint = (
        "The two engines do not agree on how many tokens the prefill computes (a chunked or a truncated prompt, speculative"
        " decoding on one side only), or the router changed the parameters."
    )
    explanation = (
        "{handed} tokens were handed over ({0}). At {1} the request is given blocks for {allocated} tokens of them after its"
        " {computed} computed ones, {beyond} more than there are: what these blocks hold is nobody's KV of this prompt."
    )

    def judge(self, event: Alloc, engine: Engine) -> Judgement:
        if not event.allocated or event.error is not None:
            return None
        pair = engine.handoffs.taken_by(event)
        if pair is None:
            return None
        taken = pair.takers[event.engine, event.request or ""]
        side = pair.given if pair.given is not None and pair.given.handoff_tokens is not None else taken
        lookup = engine.last_lookup(event)
        if side.handoff_tokens is None or lookup is None:
            return Unknown.UNSEEN
        end = lookup.computed + event.allocated
        if end <= side.handoff_tokens:
            return OK
        numbers = {"handed": side.handoff_tokens, "computed": lookup.computed, "allocated": event.allocated}
        return Drift({**numbers, "beyond": end - side.handoff_tokens}, [side, event])
