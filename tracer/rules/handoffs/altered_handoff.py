"""altered-handoff: a request is to read other blocks than are kept for it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Handoff
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, Groups


class AlteredHandoff(EngineRule[Handoff]):
    """A request is to read other blocks than the engine that prefilled keeps for it.

    Invariant: the k-th block id of each KV cache group is the same in the parameters that the engine returns which prefills,
    and in those that the engine gets which decodes.

    Source: vLLM, `remote_block_ids` go through the client's or the router's hands and are not compared with anything: a read
    of another block of the pool succeeds; the incident is vLLM #52234
    (https://github.com/vllm-project/vllm/issues/52234), where a request with other block ids was answered with HTTP 200.
    Needs the spans of both engines, and block ids (level `detailed`) on both.
    """

    id = "altered-handoff"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("N11",)
    needs_history = False
    hint = (
        "Whoever hands the `kv_transfer_params` on has changed them: they are to be passed on as they are, and not to be"
        " taken from clients."
    )
    explanation = (
        "Engine {giver} keeps {given_blocks} blocks for this request, as {0} says. The request is to read {blocks} ({1}), and"
        " they differ from number {at} on: what it reads there was not computed for it."
    )

    def judge(self, event: Handoff, engine: Engine) -> Judgement:
        pair = engine.handoffs.pair(event)
        if pair is None or event.declines:
            return None  # judged when the other engine's side comes; who declines reads nothing
        if event.takes:
            return None if pair.given is None else _compared(pair.given, event)
        if pair.given is not None or not pair.takers:
            return None
        found = [_compared(event, taken) for taken in pair.takers.values()]
        drifts = tuple(each for each in found if isinstance(each, Drift))
        return drifts or (OK if OK in found else None)


def _compared(given: Handoff, taken: Handoff) -> Judgement:
    """Whether both sides name the same blocks; None where one of them names none."""
    one, other = given.blocks_ids, taken.blocks_ids
    if not one or not other:
        return None
    if one == other and given.blocks_by_group == taken.blocks_by_group:
        return OK
    at = next(
        (at for at, both in enumerate(zip(one, other, strict=False)) if both[0] != both[1]), min(len(one), len(other))
    )
    numbers = {
        "giver": given.engine,
        "other": given.request,
        "given_blocks": len(one),
        "blocks": len(other),
        "at": at + 1,
    }
    return Drift(numbers, [given, taken])
