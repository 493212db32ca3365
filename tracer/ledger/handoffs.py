"""Hand-offs: requests that one engine prefills and another decodes, as both engines recorded them.

All recorders share this, as a pair is judged once, whichever side comes first. Sides are joined by what both engines call the
hand-off, and by nothing that a client chooses. The clocks of two engines are never compared: what came first is known where
one recorder recorded both, or where it follows from a message. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import (
    Alloc,
    Event,
    Free,
    Handoff,
    Heartbeat,
    Read,
    Received,
    RequestEnd,
    Schedule,
    Sent,
    Side,
)

MAX_HANDOFFS = 100_000
"""Hand-offs remembered; beyond that the oldest is forgotten."""
MAX_BLOCKS = 1_000_000
"""Blocks of a recorder's engine that were given back and are followed."""
MAX_ENGINES = 10_000
"""Engines that give, of which it is remembered whether they live."""
MAX_TAKERS = 16
"""Requests remembered that take one hand-off."""
MAX_WATCHED = 1_000
"""Hand-offs of a recorder of which a reader's report is waited for at the same time."""
ON_ITS_WAY_NS = 10 * 10**9
"""For how long a reader's report may be on its way, once its load has been heard of."""
PUSH = "push"
"""The mode of a connector that writes into the engine that decodes."""
Place = tuple[str, str]
"""An engine and its id of a request."""


class Taker(NamedTuple):
    """A request that has received what was handed over: its side, and the end of its load."""

    event: Handoff
    received: Received


class Kept(NamedTuple):
    """What an engine keeps for another one now: the end of the request since which it does, and the hand-off."""

    end: RequestEnd
    pair: Pair

    @property
    def tokens(self) -> int | None:
        """Tokens of which the KV is kept, where the connector or the scheduler says."""
        given = self.pair.given
        return self.end.computed if given is None or given.handoff_tokens is None else given.handoff_tokens

    @property
    def blocks(self) -> int | None:
        """Blocks that are kept, in all KV cache groups, where the connector returns their ids; at level `detailed`."""
        given = self.pair.given
        return None if given is None or given.blocks_ids is None else len(given.blocks_ids)

    @property
    def takers(self) -> list[Handoff]:
        """The requests that it is kept for, as far as another engine has reported them."""
        return list(self.pair.takers.values())

    @property
    def is_needed(self) -> bool:
        """Whether it may still be read: nobody has it yet, or a request that takes it has neither received it nor ended."""
        pair = self.pair
        return not pair.takers or any(place not in pair.loads and place not in pair.over for place in pair.takers)


@dataclass(slots=True, eq=False)
class Pair:
    """One hand-off: what is known of the engine that gives, and of the requests that take.

    Attributes:
        given: what is given, and when; None while that engine has not reported it.
        released: when the blocks were given back first, by the lease's end or since they were read.
        reads: the reports of readers of which it is not known that they came after that.
        late: the first report of a reader after it, from the same recorder.
        followed: whether it is known who gets its blocks after they were given back, as far as `given_out` says.
        given_out: the event by which another request was given one of them, before the late report.
        quiet_ns: since when, by the clock of the engine that gives, it is waited for the report of a reader that needs the
            blocks no more, though their lease has ended; 0 if it is not.
        takers: the sides of the requests that are to read it, by engine and request.
        loads: the ends of their loads that went well.
        failed: those of them of which a load failed: no report need follow.
        over: the ends of those that neither loaded nor failed to.
    """

    given: Handoff | None = None
    released: Free | Sent | None = None
    reads: int = 0
    late: Read | None = None
    followed: bool = False
    given_out: Alloc | Schedule | None = None
    quiet_ns: int = 0
    takers: dict[Place, Handoff] = field(default_factory=dict)
    loads: dict[Place, Received] = field(default_factory=dict)
    failed: set[Place] = field(default_factory=set)
    over: dict[Place, RequestEnd] = field(default_factory=dict)

    @property
    def expired(self) -> Free | None:
        """The end of the lease, if the blocks were given back by that."""
        return self.released if isinstance(self.released, Free) and self.released.lease_expired else None

    @property
    def is_given_out(self) -> bool | None:
        """Whether another request was given one of the blocks before the late report; None if that is not known."""
        return True if self.given_out is not None else False if self.followed else None

    @property
    def received(self) -> Iterator[Taker]:
        """Those that have received it, in the order in which they were heard."""
        return (Taker(self.takers[place], load) for place, load in self.loads.items())

    @property
    def done(self) -> list[Received | RequestEnd]:
        """By which of the requests that take need nothing more: the end of a load, or the end of the request without one."""
        return [*self.loads.values(), *(end for place, end in self.over.items() if place not in self.loads)]


class HandOffs:
    """The hand-offs between all engines."""

    def __init__(self) -> None:
        self._by_key: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        self._named: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        """The last hand-off that was given under a name, by that."""
        self._ambiguous: BoundedDict[str, None] = BoundedDict(MAX_HANDOFFS)
        """Keys of several hand-offs that were kept at the same time: they join nothing."""
        self._given: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        """By the engine and request that give; before those have reported it, if a worker's report came first."""
        self._taken: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        self._given_back: dict[str, BoundedDict[int, Pair]] = {}
        """By the recorder that saw it, the blocks that were given back and that nobody has been given since."""
        self._launches: BoundedDict[str, str | None] = BoundedDict(MAX_ENGINES)
        """By engine, its last launch that was heard of."""
        self._closed: BoundedDict[tuple[str, str | None], None] = BoundedDict(MAX_ENGINES)
        """Engines that have shut down, by id and launch."""
        self._watched: dict[str, list[Pair]] = {}
        """By the recorder that saw the lease's end, those that nobody needs and of which no reader has reported."""

    def given_by(self, event: Event) -> Pair | None:
        """The hand-off that the event's request gives."""
        return self._given.get(_place(event))

    def taken_by(self, event: Event) -> Pair | None:
        """The hand-off that the event's request takes."""
        return self._taken.get(_place(event))

    def pair(self, event: Handoff) -> Pair | None:
        """The hand-off of an event, before it is entered; None if nothing is known of it."""
        gives = event.handoff_side == Side.GIVES
        for key in event.handoff_keys:
            pair = self._by_key.get(key)
            if pair is not None and key not in self._ambiguous and not (gives and _is_of_another(pair, event)):
                return pair
        return self.given_by(event) if gives else self.taken_by(event)

    def namesake(self, event: Handoff) -> tuple[str, Handoff] | None:
        """A name of what is given that is also one of another hand-off, which is kept still, and that one."""
        for name in _names(event):
            pair = self._named.get(name)
            if pair is not None and pair.given is not None and pair.released is None and _is_of_another(pair, event):
                return name, pair.given
        return None

    def others(self, event: Handoff) -> list[Handoff]:
        """The other side of a hand-off, as far as it is known: the requests that take it, or the one that gives it."""
        pair = self.pair(event)
        if pair is None:
            return []
        if event.handoff_side == Side.GIVES:
            return list(pair.takers.values())
        return [] if pair.given is None else [pair.given]

    def is_gone(self, event: Event) -> str | None:
        """Whether the engine has ended that gives what the event's request takes: `restarted` or `shut down`; None if that is
        not known."""
        pair = self.taken_by(event)
        if pair is None or pair.given is None:
            return None
        engine, launch = pair.given.engine, pair.given.launch
        if self._launches.get(engine) != launch:
            return "restarted"
        return "shut down" if (engine, launch) in self._closed else None

    def kept(self, ends: Iterable[RequestEnd]) -> Iterator[Kept]:
        """What is kept for another engine, of requests that have ended and keep their blocks since."""
        for end in ends:
            pair = self.given_by(end)
            if pair is not None and pair.released is None:
                yield Kept(end, pair)

    def enter_handoff(self, event: Handoff) -> None:
        """Enter one side."""
        if not event.handoff_keys:
            return
        pair = self.pair(event) or Pair()
        gives = event.handoff_side == Side.GIVES
        other = self.namesake(event) if gives else None
        if other is not None:
            self._ambiguous[other[0]] = None
        for key in event.handoff_keys:
            known = self._by_key.setdefault(key, pair)
            if gives and other is None and _is_of_another(known, event):
                self._by_key[key] = pair  # the name is free again
        if gives:
            self._launches[event.engine] = event.launch
            self._named.update(dict.fromkeys(_names(event), pair))
            early = self._given.get(_place(event))
            if early is not None and early is not pair:  # what a worker reported before the scheduler's side was heard
                pair.released, pair.reads, pair.late = early.released, early.reads, early.late
            pair.given = pair.given or event
            self._given[_place(event)] = pair
            self._watch(pair)
        elif len(pair.takers) < MAX_TAKERS:
            pair.takers.setdefault(_place(event), event)
            self._taken[_place(event)] = pair

    def enter_read(self, event: Read) -> None:
        """A reader reports to the engine that gives that it has what it needs."""
        pair = self._giving(event)
        if pair.released is None or pair.released.recorder != event.recorder:
            pair.reads += 1
        elif pair.late is None:
            pair.late = event

    def enter_release(self, event: Free | Sent) -> None:
        """The engine that gives has given the blocks back."""
        pair = self._giving(event) if isinstance(event, Free) else self.given_by(event)
        if pair is None:
            return
        first = pair.released
        if first is None or (isinstance(first, Sent) and isinstance(event, Free) and first.recorder != event.recorder):
            pair.released = event  # a worker gives back what its scheduler then frees, whichever is heard first
            self._watch(pair)
            self._follow(pair)

    def enter_given_out(self, event: Alloc | Schedule, blocks: Iterable[int]) -> None:
        """A request is given blocks that held nothing of its own."""
        if given_back := self._given_back.get(event.recorder):
            for block in given_back.keys() & set(blocks):
                pair = given_back.pop(block)
                if pair.followed and pair.late is None and pair.given_out is None:
                    pair.given_out = event

    def lose(self, recorder: str) -> None:
        """Who is given which blocks is not known any more."""
        for pair in self._given_back.pop(recorder, {}).values():
            if pair.late is None:
                pair.followed = False

    def unacknowledged(self, event: Heartbeat) -> list[Pair]:
        """The hand-offs that nobody needs and whose lease has ended, and of which the heartbeat's recorder has waited long
        enough for a reader's report."""
        watched = self._watched.get(event.recorder, ())
        return [
            each for each in watched if each.quiet_ns and event.end_ns - each.quiet_ns > ON_ITS_WAY_NS and not each.late
        ]

    def enter_heartbeat(self, event: Heartbeat) -> None:
        """Time has passed, or the recorder has ended."""
        if event.recorder_closed and event.engine in self._launches:
            self._closed[event.engine, event.launch] = None
        if watched := self._watched.get(event.recorder):
            over = self.unacknowledged(event)
            self._watched[event.recorder] = left = [each for each in watched if not each.late and each not in over]
            for pair in left:
                pair.quiet_ns = pair.quiet_ns or event.end_ns

    def receives(self, event: Received) -> bool:
        """Whether a request has received the hand-off that it takes, by this event: not if another child of a MultiConnector
        has reported it before."""
        pair = self.taken_by(event)
        return pair is not None and not event.failed and event.error is None and _place(event) not in pair.loads

    def enter_received(self, event: Received) -> None:
        """A load has ended; it may be that of a request that takes."""
        pair = self.taken_by(event)
        if pair is None:
            return
        if self.receives(event):
            pair.loads[_place(event)] = event
            self._watch(pair)
        elif event.failed or event.error is not None:
            pair.failed.add(_place(event))

    def enter_end(self, event: RequestEnd) -> None:
        """A request has ended that has no load under way, and of which all events are known; it may be one that takes."""
        pair = self.taken_by(event)
        if pair is not None and _place(event) not in pair.failed:
            pair.over[_place(event)] = event
            self._watch(pair)

    def _follow(self, pair: Pair) -> None:
        """Note who gets the blocks that were given back, where the order of that and of a late report will be known."""
        given, released = pair.given, pair.released
        assert released is not None
        pair.followed, pair.given_out = False, None
        if given is not None and given.recorder == released.recorder and given.blocks_ids:
            pair.followed = True
            blocks = self._given_back.setdefault(released.recorder, BoundedDict(MAX_BLOCKS))
            blocks.update((block, pair) for block in given.blocks_ids if block != NULL_BLOCK)

    def _watch(self, pair: Pair) -> None:
        """Wait for a reader's report, if one must be on its way."""
        expired = pair.expired
        if expired is not None and (pair.loads or pair.over) and not (pair.reads or pair.late):
            watched = self._watched.setdefault(expired.recorder, [])
            if pair not in watched and len(watched) < MAX_WATCHED:
                watched.append(pair)

    def _giving(self, event: Event) -> Pair:
        pair = self.given_by(event)
        if pair is None:
            pair = self._given[_place(event)] = Pair()
        return pair


def is_known_since(pair: Pair, event: Event, lost_number: int) -> bool:
    """Whether no event of the recorder of `event` is missing since the hand-off was given, the last missing one being that of
    this number."""
    given = pair.given
    return given is not None and lost_number < (given.sequence if given.recorder == event.recorder else 0)


def _names(event: Handoff) -> list[str]:
    """What a hand-off is known by on the engine that gives. A connector that pushes matches the two engines' requests by the
    client's id, too."""
    names = list(event.handoff_keys)
    if event.handoff_mode == PUSH and event.external:
        names.append(f"request_id:{event.engine}/{event.external}")
    return names


def _is_of_another(pair: Pair, event: Handoff) -> bool:
    """Whether what is given is not what the event gives."""
    return pair.given is not None and _place(pair.given) != _place(event)


def _place(event: Event) -> Place:
    return event.engine, event.request or ""
