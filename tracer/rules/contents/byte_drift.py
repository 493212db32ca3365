from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import BlockCheck, Handoff, Side
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import Place
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Unknown
from kvtrail.tracer.rules.contents import mismatch
from kvtrail.tracer.rules.contents.computed_contents import ADMITTED, COMPUTED, TAKEN
from kvtrail.tracer.rules.contents.reference_hashes import SharedReferences, WrongBlocks
from kvtrail.tracer.rules.rule import EngineRule

MAX_TAKERS = 4
"""Maximum number of receiving requests of a hand-off that a sentence names."""


class ByteDrift(EngineRule[BlockCheck | Handoff]):
    State, shares_state = SharedReferences, True
    needs_history = False

    def judge(self, event: BlockCheck | Handoff, engine: Engine) -> Judgement:
        if type(event) is Handoff:
            return _unlike_given(event, engine) or None
        reported = [numbers for kind in mismatch.WHERE if (numbers := mismatch.numbers(event, kind)) is not None]
        found = tuple(Drift(numbers, [event], healed=event.check_healed) for numbers in reported)
        if not any(numbers["where"] == mismatch.DIFFERS for numbers in reported):
            wrong = engine.states[SharedReferences].wrong(event)
            found += tuple(_of_another(each, wrong, engine) for each in wrong) or _unlike_given(event, engine)
        if found:
            return found
        if event.check_look not in (*TAKEN, "held"):
            return None
        if event.check_blocks > event.check_unknown or engine.states[SharedReferences].is_any_right(event):
            return OK
        return Unknown.CONTENT if event.check_unknown else None

    def values(self, finding: Finding) -> dict[str, Any]:
        of = finding.numbers
        if "blocks" in of:
            return mismatch.sentences(of)
        places = {"place": mismatch.place(of["token"], of["block_size"], of.get("group"))}
        if "owner" in of:
            places["owner_place"] = mismatch.place(of["owner_token"], of["block_size"], of.get("owner_group"))
        return places


def _of_another(wrong: WrongBlocks, beside: list[WrongBlocks], engine: Engine) -> Drift:
    """The drift of a check whose blocks hold content that was computed under other hashes. Its numbers are those of the first
    block. `beside` are wrong blocks of other checks that were found at the same time."""
    block, owner = wrong[min(wrong)]
    event = block.event
    numbers = _numbers(event, wrong) | {
        "owner": owner.event.request,
        "owner_engine": owner.event.engine,
        "owner_token": owner.token,
    }
    if event.group is not None:
        numbers["owner_group"] = owner.event.group
    if event.check_look == ADMITTED and (source := engine.states[SharedReferences].left_by(block, beside)):
        numbers["source"] = source
    handoffs = _handoffs(event, owner.event, engine, numbers)
    return Drift(numbers, [owner.event, *handoffs, event], grown=engine.states[SharedReferences].is_known_of(wrong))


def _unlike_given(event: BlockCheck | Handoff, engine: Engine) -> tuple[Drift, ...]:
    """The loads whose content differs from the KV that was handed over: the load of this event, or the loads of requests that
    receive the KV which this event reports as computed or handed over. A preempted request may have computed several
    versions of it."""
    handoffs, loads_of = engine.handoffs, engine.states[SharedReferences].loads_of
    checks: dict[Place, tuple[BlockCheck, ...]] | None = None
    beside: BlockCheck | None = None
    if type(event) is Handoff:
        pair, given = handoffs.pair(event), event if event.handoff_side == Side.GIVES else None
    elif event.check_look == COMPUTED:
        pair, beside = handoffs.given_by(event), event
        given = None if pair is None else pair.given
    else:
        pair, checks = handoffs.taken_by(event), {(event.engine, event.request or ""): (event,)}
        given = None if pair is None else pair.given
    if pair is None or given is None or given.epoch:
        return ()
    late = checks is None
    found = []
    for place in pair.takers.keys() - pair.failed - pair.recomputed:
        for check in loads_of(*place) if checks is None else checks.get(place, ()):
            if wrong := engine.states[SharedReferences].unlike_given(
                check, (given.engine, given.request or ""), beside
            ):
                _, computed = wrong[min(wrong)]
                numbers = _numbers(check, wrong) | {"given_by": given.engine, "given": given.request}
                found.append(Drift(numbers, [computed.event, given, pair.takers[place], check], grown=late))
    return tuple(found)


def _numbers(event: BlockCheck, wrong: WrongBlocks) -> dict[str, Any]:
    """The finding's numbers for a check with wrong blocks and for the first of these blocks."""
    return {
        "where": mismatch.DIFFERS,
        "look": event.check_look,
        "looked": event.looked,
        "wrong": len(wrong),
        "token": min(wrong),
        "block_size": event.block_size,
        "rank": event.rank,
        **({} if event.group is None else {"group": event.group}),
    }


def _handoffs(event: BlockCheck, owner: BlockCheck, engine: Engine, numbers: dict[str, Any]) -> list[Handoff]:
    """The events that show to whom a block's KV was handed over, and which KV its own request was to read, as far as known.
    Adds both to the numbers."""
    events: list[Handoff] = []
    given, taken = engine.handoffs.given_by(owner), engine.handoffs.taken_by(event)
    if given is not None and given.given is not None:
        takers = list(given.takers.values())[:MAX_TAKERS]
        numbers["takers"] = [each.request for each in takers]
        events += [given.given, *takers]
    if taken is not None and taken is not given and taken.given is not None:
        numbers["meant"] = taken.given.request
        events.append(taken.takers[event.engine, event.request or ""])
    return events
