from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import Any

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.reference_hashes import COMPUTED, LOADED, ReportedBlock, reported_blocks
from kvtrail.tracer.ledger.slim_reference_hashes import SlimBlock, slim_blocks
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups, KnownBy
from kvtrail.tracer.rules.contents import mismatch


class ByteDrift(EngineRule[BlockCheck]):
    """A block holds other KV than was computed under its hash.

    Invariant: what a request loads, takes over or holds under a block hash is one of the contents that were computed under
    this hash, by a request without a wrong block before it.

    Equal hashes promise equal prefixes. What was computed under a hash is a set: how requests are batched may change bits.
    The worker judges by what its engine has computed; where others write to the store, too, only content that is known to be
    another's, zeros, or computed after a wrong block. What the engine does not know is compared with what engines of the same
    `kvtrail.cache.identity` computed: it is wrong if it was computed under another hash alone. Source: vLLM,
    `hash_block_tokens` chains a block's tokens to all before them; the incidents are vLLM #52234
    (https://github.com/vllm-project/vllm/issues/52234) and #45704 (https://github.com/vllm-project/vllm/issues/45704), and
    LMCache #4463 (https://github.com/LMCache/LMCache/issues/4463). Needs fingerprints.
    """

    id = "byte-drift"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    known_by = KnownBy.BYTES
    level = Level.DETAILED
    classes = ("N3", "N9")
    hint = (
        "The copy into the store began before the block was computed, or a key, a block id or a layout was mistaken for"
        " another. Set `guard: heal` to have wrong blocks computed again."
    )
    needs_history = False

    def judge(self, event: BlockCheck, engine: Engine) -> Judgement:
        if (numbers := mismatch.numbers(event, "drift")) is not None:
            return Drift(numbers, [event], healed=event.check_healed)
        if event.check_look == COMPUTED:
            return tuple(starmap(_of_another, _found_late(event, engine))) or None
        if event.check_look == LOADED and (foreign := _foreign(event, engine)):
            return _of_another([block for block, _ in foreign], foreign[0][1])
        if event.check_blocks > event.check_unknown:
            return OK
        if event.check_look == LOADED and (
            any(map(engine.references.is_right, reported_blocks(event)))
            or any(map(engine.references.slim.is_right, slim_blocks(event)))
        ):
            return OK
        return Unknown.CONTENT if event.check_unknown else None

    def template(self, finding: Finding) -> str:
        if "owner" in finding.numbers:
            return (
                "At {1} {checked} compared with what engines of equal caches had computed, and {wrong} did not match:"
                " this request's {place} hold what engine {owner_engine} computed at {0} for request {owner}'s {owner_place},"
                " under another {other}."
            )
        return (
            "At {0} {checked} compared with what had been computed under their hashes, and {wrong} did not match."
            "{of_all} {contents}"
        )

    def values(self, finding: Finding) -> dict[str, Any]:
        of = finding.numbers
        if "owner" in of:
            size = of["block_size"]
            return {
                "checked": mismatch.checked(of),
                "place": mismatch.place(of["token"], size, of.get("group")),
                "owner_place": mismatch.place(of["owner_token"], size, of.get("owner_group")),
                "other": "hash" if of.get("group") == of.get("owner_group") else "KV cache group",
            }
        return mismatch.sentences(of)


Block = ReportedBlock | SlimBlock


def _foreign(event: BlockCheck, engine: Engine) -> list[tuple[Block, Block]]:
    """The blocks of a load that hold what was computed under other hashes, each with the block that has this content; where
    both kinds of fingerprints show one, that of all its bytes counts."""
    foreign: dict[int, tuple[Block, Block]] = {}
    for block, owner in engine.references.slim.foreign(event):
        foreign[block.token] = block, owner
    for each in reported_blocks(event):
        if (known := engine.references.owner(each)) is not None:
            foreign[each.token] = each, known
    return [foreign[token] for token in sorted(foreign)]


def _found_late(event: BlockCheck, engine: Engine) -> Iterator[tuple[list[Block], Block]]:
    """The loads that this event of computed blocks proves wrong: for each, its wrong blocks, and the block that has the
    content of the first one."""
    loads: dict[str, tuple[dict[int, Block], Block]] = {}
    owners = list(reported_blocks(event))
    right = {(event.group, owner.hash, owner.fingerprint) for owner in owners}
    for owner in owners:
        for block in engine.references.waiting(owner):
            if (block.event.group, block.hash, block.fingerprint) in right:
                continue
            loads.setdefault(block.event.span_id, ({}, owner))[0][block.token] = block
    for slim, of in engine.references.slim.found_late(event):
        loads.setdefault(slim.event.span_id, ({}, of))[0].setdefault(slim.token, slim)
    for blocks, of_first in loads.values():
        yield [blocks[token] for token in sorted(blocks)], of_first


def _of_another(blocks: list[Block], owner: Block) -> Drift:
    """Loaded blocks of an event hold what was computed under other hashes; the first of them holds that of `owner`."""
    first = blocks[0]
    numbers = {
        "look": LOADED,
        "looked": first.event.looked,
        "wrong": len(blocks),
        "token": first.token,
        "block_size": first.event.block_size,
        "rank": first.event.rank,
        "owner": owner.event.request,
        "owner_engine": owner.event.engine,
        "owner_token": owner.token,
    }
    if first.event.group is not None:
        numbers |= {"group": first.event.group, "owner_group": owner.event.group}
    return Drift(numbers, [owner.event, first.event])
