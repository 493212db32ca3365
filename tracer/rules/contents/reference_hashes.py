"""What was computed under which hash, as workers report it: the references that engines with comparable caches share.

An engine's worker judges what it has computed itself. Of what it cannot judge, since it never computed that hash or others
write to its store, it reports the fingerprint, and here that may be known from another engine. Nothing is wrong for being
absent here: spans get lost, and a store may hold other versions of a block. Only content that is known to be another block's
is wrong, of a request with the same adapter and salt: a salt changes the hashes of a prompt, and not its KV. Pure and
bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.rules.contents.computed_contents import (
    COMPUTED,
    LOADED,
    TAKEN,
    ComputedContents,
    ReportedBlock,
    reported_blocks,
)

MAX_LOADS = 4_096
"""Requests with loads remembered that may be compared with what was handed over, once that is reported."""
MAX_CHECKS = 64
"""Of one request."""
SEVERAL = 3
"""So many blocks of one load, and all that can be compared, differ from what was computed by no accident, whoever they belong
to: a read copies bits, and the engine that gave them had computed these itself."""
MAX_WRONG = 50_000
"""Wrong blocks remembered, and again of those that loads have left behind; beyond that, those of the check that was found
wrong longest ago are forgotten."""

WrongBlocks = dict[int, tuple[ReportedBlock, ReportedBlock]]
"""Of one check, by token: a block that holds what was computed under another hash, and the block with that content."""


@dataclass(slots=True)
class SharedReferences:
    """What is known of computed contents."""

    computed: ComputedContents = field(default_factory=ComputedContents)
    _wrong: dict[str, WrongBlocks] = field(default_factory=dict)
    """By the span of a check, the wrong blocks that are known of it until now."""
    _wrongs: int = 0
    _loads: BoundedDict[tuple[str, str], tuple[BlockCheck, ...]] = field(default_factory=lambda: BoundedDict(MAX_LOADS))
    """By engine and request, the checks of what it loaded and its engine does not know."""
    _asked: tuple[BlockCheck, list[WrongBlocks]] | None = None
    """The event that was asked about last, until one is entered: a rule asks first."""
    _left: BoundedDict[tuple[str, int, int | None, str], str] = field(default_factory=lambda: BoundedDict(MAX_WRONG))
    """By engine, rank, group and hash, the request with the load that left another's content in a block."""

    def wrong(self, event: BlockCheck) -> list[WrongBlocks]:
        """The checks with blocks that this event proves wrong, before it is entered: its own, or those of blocks that hold
        what it reports as computed. Each has the wrong blocks that are known by now, those found before included."""
        if self._asked is None or self._asked[0] is not event:
            if event.check_look in TAKEN:
                fresh = [{block.token: (block, owner) for block, owner in self.computed.foreign(event)}]
            else:
                fresh = [*self._found_late(event).values()] if event.check_look == COMPUTED else []
            self._asked = event, [{**self._known_of(blocks), **blocks} for blocks in fresh if blocks]
        return self._asked[1]

    def is_known_of(self, wrong: WrongBlocks) -> bool:
        """Whether some of these were found before."""
        return bool(self._known_of(wrong))

    def loads_of(self, engine: str, request: str) -> tuple[BlockCheck, ...]:
        """The checks of what a request loaded and its engine does not know."""
        return self._loads.get((engine, request), ())

    def unlike_given(self, event: BlockCheck, giver: tuple[str, str], beside: BlockCheck | None = None) -> WrongBlocks:
        """The blocks of a load, if there are several, that differ from all that was computed under their hashes, each with
        what a request of the engine that gives computed. None of them, unless all do that can be compared. What is
        reported `beside` the load, and not yet entered, counts, too."""
        if event.check_look != LOADED or event.check_unknown != event.check_blocks:
            return {}  # some are known to be right
        unlike = self.computed.unlike_given(event, giver, beside)
        return {block.token: (block, given) for block, given in unlike} if len(unlike) >= SEVERAL else {}

    def left_by(self, block: ReportedBlock, beside: Iterable[WrongBlocks]) -> str | None:
        """The request with the load that left another's content in a block that another request takes over; `beside` it these
        have come to light."""
        place = _place(block)
        loads = (each for wrong in beside for each, _ in wrong.values() if each.event.check_look == LOADED)
        return self._left.get(place) or next((each.event.request for each in loads if _place(each) == place), None)

    def is_any_right(self, event: BlockCheck) -> bool:
        """Whether somebody computed the content of some block of a check under its hash."""
        return any(map(self.computed.is_right, reported_blocks(event)))

    def enter(self, event: BlockCheck) -> None:
        """Remember what an event reports."""
        wrongs, self._asked = self.wrong(event), None
        for wrong in wrongs:
            check = _check_of(wrong)
            self._wrongs += len(wrong) - len(self._wrong.get(check.span_id, ()))
            self._wrong[check.span_id] = wrong
            while self._wrongs > MAX_WRONG:
                self._wrongs -= len(self._wrong.pop(next(iter(self._wrong))))
            if check.check_look == LOADED:
                self._left.update({_place(block): check.request or "" for block, _ in wrong.values()})
        self.computed.enter(event)
        if event.check_look == LOADED and event.check_unknown and event.check_fingerprints:
            of = (event.engine, event.request or "")
            self._loads[of] = (*self._loads.get(of, ()), event)[-MAX_CHECKS:]

    def _enter_block_check(self, event: BlockCheck, engine: Engine) -> None:
        self.enter(event)

    def _known_of(self, wrong: WrongBlocks) -> WrongBlocks:
        return self._wrong.get(_check_of(wrong).span_id, {})

    def _found_late(self, event: BlockCheck) -> dict[str, WrongBlocks]:
        """By the span of a check, its blocks that this event of computed ones proves wrong."""
        checks: dict[str, WrongBlocks] = {}
        for block, owner in self.computed.found_late(event):
            checks.setdefault(block.event.span_id, {}).setdefault(block.token, (block, owner))
        return checks


def _check_of(wrong: WrongBlocks) -> BlockCheck:
    return next(iter(wrong.values()))[0].event


def _place(block: ReportedBlock) -> tuple[str, int, int | None, str]:
    return block.event.engine, block.event.rank, block.event.group, block.hash
