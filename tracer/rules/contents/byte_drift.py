from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import BlockCheck, Handoff, Side
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.computed_contents import ADMITTED, COMPUTED, TAKEN
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import Place
from kvtrail.tracer.ledger.reference_hashes import WrongBlocks
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups, KnownBy
from kvtrail.tracer.rules.contents import mismatch

MAX_TAKERS = 4
"""Requests that a sentence names of those that took a hand-off."""


class ByteDrift(EngineRule[BlockCheck | Handoff]):
    """A block holds other KV than was computed under its hash.

    Invariant: what a request loads, takes over or holds under a block hash is one of the contents that were computed under
    this hash, by a request without a wrong block before it.

    Equal hashes promise equal prefixes. What was computed under a hash is a set: how requests are batched may change bits.
    The worker judges by what its engine has computed; where others write to the store, too, only content that is known to be
    another's, zeros, or computed after a wrong block. What the engine does not know is compared with what engines of the
    same `kvtrail.cache.identity` computed: it is wrong if it was computed under another hash alone. What was read from
    another engine is wrong, too, if several blocks, and all that can be compared, differ from what the request that was
    handed over computed in its only run: a read copies bits, and last bits differ between computations alone. A wrong load
    stays in vLLM's prefix cache: each request that takes its blocks over is named, too, as long as they hold what they did.
    Source: vLLM, `hash_block_tokens` chains a block's tokens to all before them; the incidents are vLLM #52234
    (https://github.com/vllm-project/vllm/issues/52234), #45704 (https://github.com/vllm-project/vllm/issues/45704), and
    #28677 (https://github.com/vllm-project/vllm/pull/28677), and LMCache #4463
    (https://github.com/LMCache/LMCache/issues/4463). Needs fingerprints.
    """

    id = "byte-drift"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    known_by = KnownBy.BYTES
    level = Level.DETAILED
    classes = ("N3", "N9")
    hint = (
        "The copy into the store began before the block was computed, or after it was given to another request, or a key, a"
        " block id or a layout was mistaken for another."
    )
    mitigation = "Set `guard: heal` to have wrong blocks computed again."
    needs_history = False

    def judge(self, event: BlockCheck | Handoff, engine: Engine) -> Judgement:
        if type(event) is Handoff:
            return _unlike_given(event, engine) or None
        if (numbers := mismatch.numbers(event, "drift")) is not None:
            return Drift(numbers, [event], healed=event.check_healed)
        if wrong := engine.references.wrong(event):
            return tuple(_of_another(each, wrong, engine) for each in wrong)
        if unlike := _unlike_given(event, engine):
            return unlike
        if event.check_look not in (*TAKEN, "held"):
            return None
        if event.check_blocks > event.check_unknown or engine.references.is_any_right(event):
            return OK
        return Unknown.CONTENT if event.check_unknown else None

    def template(self, finding: Finding) -> str:
        if "given" in finding.numbers:
            return (
                "At {3} {checked} compared with what engine {given_by} had computed for request {given} ({0}), which was"
                " handed over at {1}, to this request at {2}. All {wrong} that can be compared differ, the first of them this"
                " request's {place}. Whose KV they hold is not known."
            )
        if "owner" in finding.numbers:
            is_own = finding.numbers["owner_engine"] == finding.engine
            had = "the engine had" if is_own else "engines of equal caches had"
            one = "it had" if is_own else "engine {owner_engine}"
            return (
                f"At {{{len(finding.witness) - 1}}} {{checked}} compared with what {had} computed, and {{wrong}} did not"
                f" match: this request's {{place}} hold what {one} computed at {{0}} for request {{owner}}'s"
                f" {{owner_place}}, under another {{other}}.{{left}}{_handed_over(finding)}"
            )
        return (
            "At {0} {checked} compared with the KV that was computed under the same hash, and {wrong} did not match."
            "{of_all} {contents}"
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        of = finding.numbers
        if "given" in of:
            place = mismatch.place(of["token"], of["block_size"], of.get("group"))
            return {"checked": mismatch.checked(of), "place": place}
        if "owner" in of:
            size = of["block_size"]
            return {
                "checked": mismatch.checked(of),
                "place": mismatch.place(of["token"], size, of.get("group")),
                "owner_place": mismatch.place(of["owner_token"], size, of.get("owner_group")),
                "other": "hash" if of.get("group") == of.get("owner_group") else "KV cache group",
                "left": f" Request {of['source']}'s load left it so." if "source" in of else "",
            }
        return mismatch.sentences(of)


def _of_another(wrong: WrongBlocks, beside: list[WrongBlocks], engine: Engine) -> Drift:
    """Blocks of a check hold what was computed under other hashes; the numbers are those of the first of them. Those of other
    checks have come to light `beside` it."""
    block, owner = wrong[min(wrong)]
    event = block.event
    numbers = _numbers(event, wrong) | {
        "owner": owner.event.request,
        "owner_engine": owner.event.engine,
        "owner_token": owner.token,
    }
    if event.group is not None:
        numbers["owner_group"] = owner.event.group
    if event.check_look == ADMITTED and (source := engine.references.left_by(block, beside)):
        numbers["source"] = source
    handoffs = _handoffs(event, owner.event, engine, numbers)
    return Drift(numbers, [owner.event, *handoffs, event], grown=engine.references.is_known_of(wrong))


def _unlike_given(event: BlockCheck | Handoff, engine: Engine) -> tuple[Drift, ...]:
    """Loads with other content than was handed over to them: that of this event, or those of requests that take what this one
    says was computed, or handed over. A request that was preempted may have computed it in several versions."""
    handoffs, loads_of = engine.handoffs, engine.references.loads_of
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
            if wrong := engine.references.unlike_given(check, (given.engine, given.request or ""), beside):
                _, computed = wrong[min(wrong)]
                numbers = _numbers(check, wrong) | {"given_by": given.engine, "given": given.request}
                found.append(Drift(numbers, [computed.event, given, pair.takers[place], check], grown=late))
    return tuple(found)


def _numbers(event: BlockCheck, wrong: WrongBlocks) -> dict[str, Any]:
    """Of a check with wrong blocks, and the first of them."""
    return {
        "look": event.check_look,
        "looked": event.looked,
        "wrong": len(wrong),
        "token": min(wrong),
        "block_size": event.block_size,
        "rank": event.rank,
        **({} if event.group is None else {"group": event.group}),
    }


def _handoffs(event: BlockCheck, owner: BlockCheck, engine: Engine, numbers: dict[str, Any]) -> list[Handoff]:
    """To whom the KV that a block holds was handed over, and what its own request was to read, as far as it is known: added
    to the numbers, with the events that show it."""
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


def _handed_over(finding: Finding) -> str:
    """The sentences about that; the second witness and those after it are its events."""
    of, sentences, behind = finding.numbers, "", 1
    if (takers := of.get("takers")) is not None:
        names = ["this request" if each == finding.request else f"request {each}" for each in takers]
        to = " and ".join(f"{name} at {{{number}}}" for number, name in enumerate(names, 2))
        sentences += " That request was handed over at {1}" + (
            f", to {to}." if to else "; nobody is known to have taken it."
        )
        behind += 1 + len(takers)
    if "meant" in of:
        sentences += f" At {{{behind}}} this request was to read what had been computed for request {{meant}}."
    return sentences
