"""The contents computed under each hash, as workers report them: references shared by engines with comparable caches.

An engine's worker judges the blocks that it has computed itself. It cannot judge a block if it never computed its hash, or if
others write to its store. It then reports the fingerprint, which may be known here from another engine. An unknown
fingerprint is not wrong: spans get lost, and a store may hold other versions of a block. Content is wrong only if it is known
to belong to another block of a request with the same adapter and salt: a salt changes the hashes of a prompt, but not its KV.
Pure and bounded.
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
"""Maximum number of requests whose loads are remembered for comparison with the KV that was handed over."""
MAX_CHECKS = 64
"""Maximum number of remembered checks of one request."""
SEVERAL = 3
"""Minimum number of differing blocks of one load, if all comparable ones differ, that proves a fault, whatever block their
content belongs to. A read copies bits, and the sending engine had computed them itself."""
MAX_WRONG = 50_000
"""Maximum number of remembered wrong blocks, and of wrong blocks that loads left behind. Beyond it, the blocks of the check
that was found wrong first are forgotten."""

WrongBlocks = dict[int, tuple[ReportedBlock, ReportedBlock]]
"""The wrong blocks of one check, by token: a block with content that was computed under another hash, and the block to which
the content belongs."""


@dataclass(slots=True)
class SharedReferences:
    """The known computed contents, and the checks that they prove wrong."""

    computed: ComputedContents = field(default_factory=ComputedContents)
    _wrong: dict[str, WrongBlocks] = field(default_factory=dict)
    """The wrong blocks of each check that are known so far, by the check's span."""
    _wrongs: int = 0
    _loads: BoundedDict[tuple[str, str], tuple[BlockCheck, ...]] = field(default_factory=lambda: BoundedDict(MAX_LOADS))
    """By engine and request, the checks of loaded blocks that its engine cannot judge."""
    _asked: tuple[BlockCheck, list[WrongBlocks]] | None = None
    """The event of the last query, until an event is entered: a rule queries first."""
    _left: BoundedDict[tuple[str, int, int | None, str], str] = field(default_factory=lambda: BoundedDict(MAX_WRONG))
    """By engine, rank, group and hash, the request whose load left another block's content in a block."""

    def wrong(self, event: BlockCheck) -> list[WrongBlocks]:
        """The checks with blocks that this event, before it is entered, proves wrong: its own check, or checks of blocks with
        content that it reports as computed. Each has all wrong blocks that are known by now, including earlier ones."""
        if self._asked is None or self._asked[0] is not event:
            if event.check_look in TAKEN:
                fresh = [{block.token: (block, owner) for block, owner in self.computed.foreign(event)}]
            else:
                fresh = [*self._found_late(event).values()] if event.check_look == COMPUTED else []
            self._asked = event, [{**self._known_of(blocks), **blocks} for blocks in fresh if blocks]
        return self._asked[1]

    def is_known_of(self, wrong: WrongBlocks) -> bool:
        """Whether some of these wrong blocks were found before."""
        return bool(self._known_of(wrong))

    def loads_of(self, engine: str, request: str) -> tuple[BlockCheck, ...]:
        """The checks of blocks that a request loaded and its engine cannot judge."""
        return self._loads.get((engine, request), ())

    def unlike_given(self, event: BlockCheck, giver: tuple[str, str], beside: BlockCheck | None = None) -> WrongBlocks:
        """The blocks of a load, if there are several, that differ from all contents computed under their hashes. Each comes
        with the block that a request of the sending engine computed. Empty unless all comparable blocks differ. Blocks that
        are reported `beside` the load, and not yet entered, count too."""
        if event.check_look != LOADED or event.check_unknown != event.check_blocks:
            return {}  # some are known to be right
        unlike = self.computed.unlike_given(event, giver, beside)
        return {block.token: (block, given) for block, given in unlike} if len(unlike) >= SEVERAL else {}

    def left_by(self, block: ReportedBlock, beside: Iterable[WrongBlocks]) -> str | None:
        """The request whose load left another block's content in a block that another request reuses. `beside` are wrong
        blocks that were found at the same time."""
        place = _place(block)
        loads = (each for wrong in beside for each, _ in wrong.values() if each.event.check_look == LOADED)
        return self._left.get(place) or next((each.event.request for each in loads if _place(each) == place), None)

    def is_any_right(self, event: BlockCheck) -> bool:
        """Whether the content of some block of a check was computed under its hash."""
        return any(map(self.computed.is_right, reported_blocks(event)))

    def enter(self, event: BlockCheck) -> None:
        """Remember the blocks that an event reports."""
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
        """The blocks that this event of computed blocks proves wrong, by the span of their check."""
        checks: dict[str, WrongBlocks] = {}
        for block, owner in self.computed.found_late(event):
            checks.setdefault(block.event.span_id, {}).setdefault(block.token, (block, owner))
        return checks


def _check_of(wrong: WrongBlocks) -> BlockCheck:
    return next(iter(wrong.values()))[0].event


def _place(block: ReportedBlock) -> tuple[str, int, int | None, str]:
    return block.event.engine, block.event.rank, block.event.group, block.hash
