from __future__ import annotations

from collections.abc import Callable

from kvtrail.tracer.events.events import Alloc, Handoff, Xfer
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import PairRule


class HandoffMismatch(PairRule[Handoff | Xfer | Alloc]):
    needs_history = False

    def judge(self, event: Handoff | Xfer | Alloc, engine: Engine) -> Judgement:
        if isinstance(event, Alloc):
            return _judge_tokens(event, engine)
        drifts = [each for each in map(_written, engine.handoffs.written(event)) if isinstance(each, Drift)]
        if isinstance(event, Xfer):
            return tuple(drifts) or None
        prompts = [] if drifts else _on_both_sides(event, engine, _compared_prompts)
        found = prompts + _on_both_sides(event, engine, _compared_blocks)
        drifts += [each for each in found if isinstance(each, Drift)]
        if drifts:
            return tuple(drifts)
        return OK if OK in found else next((each for each in prompts if isinstance(each, Unknown)), None)


def _on_both_sides(
    event: Handoff, engine: Engine, compared: Callable[[Handoff, Handoff], Judgement]
) -> list[Judgement]:
    """Compare the side of a hand-off that this event reports with the known other sides. Empty if it is judged when the other
    side arrives, and for a side that declines, since it reads nothing."""
    pair = engine.handoffs.pair(event)
    if pair is None or event.declines:
        return []
    if event.takes:
        return [] if pair.given is None else [compared(pair.given, event)]
    if pair.given is not None:
        return []  # another child of a MultiConnector has reported it
    return [compared(event, taken) for taken in pair.takers.values()]


def _written(found: tuple[Handoff, Handoff, Xfer]) -> Judgement:
    """Compare the KV that an engine writes with the prompt of the request that this engine chose."""
    given, taken, write = found
    compared = _compared_prompts(given, taken)
    return Drift(compared.numbers, [given, write, taken]) if isinstance(compared, Drift) else compared


def _compared_prompts(given: Handoff, taken: Handoff) -> Judgement:
    """Whether both sides have the same prompt."""
    if given.digest is None or taken.digest is None or given.digest_tokens is None or taken.digest_tokens is None:
        return Unknown.UNSEEN
    shorter = taken.prompt is not None and taken.prompt < given.digest_tokens
    if given.digest_tokens != taken.digest_tokens and not shorter:
        return Unknown.UNSEEN
    if given.digest == taken.digest:
        return OK
    numbers = {
        "where": "another prompt",
        "giver": given.engine,
        "other": given.request,
        "given_prompt": given.prompt,
        "prompt": taken.prompt,
        "compared": taken.digest_tokens,
        "handed": given.digest_tokens,
        "shorter": shorter,
    }
    return Drift(numbers, [given, taken])


def _compared_blocks(given: Handoff, taken: Handoff) -> Judgement:
    """Whether both sides name the same blocks; None if one of them names none."""
    one, other = given.blocks_ids, taken.blocks_ids
    if not one or not other:
        return None
    if one == other and given.blocks_by_group == taken.blocks_by_group:
        return OK
    at = next(
        (at for at, both in enumerate(zip(one, other, strict=False)) if both[0] != both[1]), min(len(one), len(other))
    )
    numbers = {
        "where": "other blocks",
        "giver": given.engine,
        "other": given.request,
        "given_blocks": len(one),
        "blocks": len(other),
        "at": at + 1,
    }
    return Drift(numbers, [given, taken])


def _judge_tokens(event: Alloc, engine: Engine) -> Judgement:
    """Whether a request loads more tokens than were handed over."""
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
    numbers = {
        "where": "more tokens",
        "handed": side.handoff_tokens,
        "computed": lookup.computed,
        "allocated": event.allocated,
        "beyond": end - side.handoff_tokens,
    }
    return Drift(numbers, [side, event])
