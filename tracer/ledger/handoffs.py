"""Hand-offs: requests that one engine prefills and another decodes, as both engines recorded them.

All recorders share this, as a pair is judged once, whichever side comes first. Sides are joined by what both engines call the
hand-off, and by nothing that a client chooses. The clocks of two engines are never compared: what came first is known where
one recorder recorded both, or where it follows from a message. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    LoadError,
    Read,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Sent,
    Side,
    Xfer,
    XferOp,
    XferState,
)
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.ledger.handoff_sums import NOBODY, Flows, HandedOver, Outcome

MAX_HANDOFFS = 100_000
"""Hand-offs remembered; beyond that the oldest is forgotten."""
MAX_BLOCKS = 1_000_000
"""Blocks of a recorder's engine that were given back and are followed."""
MAX_ENGINES = 10_000
"""Engines that give: how many of them are remembered as living or not."""
MAX_TAKERS = 16
"""Requests remembered that take one hand-off."""
MAX_REPORTS = 256
"""Reports remembered of one hand-off, or writes that are open."""
MAX_WATCHED = 1_000
"""Hand-offs of a recorder that wait for a reader's report at the same time."""
ON_ITS_WAY_NS = 10 * 10**9
"""For how long a reader's report may be on its way, once its load has been heard of."""
PUSH = "push"
"""The mode of a connector that writes into the engine that decodes."""
Place = tuple[str, str]
"""An engine and its id of a request."""
KINDS = frozenset({
    Kind.HANDOFF, Kind.READ, Kind.FREE, Kind.SENT, Kind.RECEIVED, Kind.XFER, Kind.LOAD_ERROR, Kind.REQUEST, Kind.HEARTBEAT,
})  # fmt: skip
"""The events that are entered."""


class Taker(NamedTuple):
    """A request that has received what was handed over: its side, and the end of its load. What it loaded may be computed
    again."""

    event: Handoff
    received: Received
    recomputed: bool


@dataclass(slots=True, eq=False)
class Pair:
    """One hand-off: what is known of the engine that gives, and of the requests that take.

    Attributes:
        given: what is given, and when; None while that engine has not reported it.
        freed: when the blocks were freed after the request's end, if that was recorded.
        released: when the blocks were given back first, by the lease's end or since they were read.
        reports: those of readers that are not known to have come after that, or the ends of writes.
        late: the first report of a reader after it, or the first write that ended well after it, from the same recorder; or
            the first report to another launch of the engine that gives, which never had these blocks.
        writes: what the engine that gives writes, by the other engine's id of the request that it writes to.
        open: those of these writes that are not known to have ended.
        followed: whether it is known who gets its blocks after they were given back, as far as `given_out` says.
        given_out: the event by which another request was given one of them, before the late report.
        quiet_ns: since when, by the clock of the engine that gives, it is waited for the report of a reader that needs the
            blocks no more, though their lease has ended; 0 if it is not.
        takers: the sides of the requests that are to read it, by engine and request.
        declined: the sides of those that were to read it and were refused, or left, before they were scheduled.
        loads: the ends of their loads that went well.
        failed: those of them with a failed load or read: no report need follow.
        counted: the ends that are counted, of the requests on that side.
        counted_as: what the end of the engine that gives is counted as, so far.
        over: the ends of those that neither loaded nor failed to, if all their events are known.
        unserved: those that have ended before a load did, or failed to load.
        recomputed: those with blocks that were reported as not loaded, so that vLLM computes them again.
    """

    given: Handoff | None = None
    freed: Free | None = None
    released: Free | Sent | None = None
    reports: list[Read | Xfer] = field(default_factory=list)
    late: Read | Xfer | None = None
    writes: dict[str, Xfer] = field(default_factory=dict)
    open: list[Xfer] = field(default_factory=list)
    followed: bool = False
    given_out: Alloc | Schedule | None = None
    quiet_ns: int = 0
    takers: dict[Place, Handoff] = field(default_factory=dict)
    declined: dict[Place, Handoff] = field(default_factory=dict)
    loads: dict[Place, Received] = field(default_factory=dict)
    failed: set[Place] = field(default_factory=set)
    counted: dict[Place, HandedOver] = field(default_factory=dict)
    counted_as: Outcome | None = None
    over: dict[Place, RequestEnd] = field(default_factory=dict)
    unserved: set[Place] = field(default_factory=set)
    recomputed: set[Place] = field(default_factory=set)

    @property
    def keys(self) -> tuple[str, ...]:
        """What both engines call it; nothing as long as neither has said so."""
        sides = (*([] if self.given is None else [self.given]), *self.readers)
        return tuple(dict.fromkeys(key for side in sides for key in side.handoff_keys))

    @property
    def giver(self) -> str | None:
        """The engine that gives, as it says itself, or as a reader says; None if neither did."""
        if self.given is not None:
            return self.given.engine
        return next((each.handoff_peer for each in self.readers if each.handoff_peer), None)

    @property
    def readers(self) -> list[Handoff]:
        """The sides of the requests that are to read it, and of those that have declined to."""
        return [*self.takers.values(), *self.declined.values()]

    @property
    def reading_engines(self) -> set[str]:
        """The engines of these requests."""
        return {engine for engine, _ in (*self.takers, *self.declined)}

    @property
    def waiting(self) -> list[Handoff]:
        """The sides of the requests that have yet to load it."""
        return [each for place, each in self.takers.items() if place not in self.loads and place not in self.unserved]

    @property
    def expired(self) -> Free | None:
        """The end of the lease, if the blocks were given back by that."""
        return self.released if isinstance(self.released, Free) and self.released.lease_expired else None

    def settled_by(self, freed: Free) -> Read | Xfer | None:
        """The report after which the rank that gave its blocks back by this event had to keep them for nobody: of the last of
        its readers, each counted once, or of the end of the last of its own writes. None if not all are known to be done."""
        here = [each for each in self.reports if _rank(each) == _rank(freed)]
        reads, ended = (
            [each for each in here if isinstance(each, Read)],
            [each for each in here if isinstance(each, Xfer)],
        )
        expected, readers = _expected(reads), set()
        for read in reads:
            readers.add(read.peer)
            if expected is not None and len(readers) >= expected:
                return read
        if len(self.reports) == MAX_REPORTS or any(_rank(each) == _rank(freed) for each in self.open):
            return None
        number = max((each.notifications_expected or 1 for each in (*ended, *self.writes.values())), default=1)
        are_done = len(ended) >= number and all(each.xfer_state == XferState.DONE for each in ended)
        return ended[-1] if are_done else None

    def is_open(self, ended: Xfer) -> bool:
        """Whether a write that ends by this event is known to have begun."""
        return any(_ends(ended, each) for each in self.open)

    @property
    def missing(self) -> tuple[int, int] | None:
        """How many reports the rank with the lease that ended has had, and how many of readers it needed; None if none is
        known to be missing. Who writes itself gets none."""
        expired = self.expired
        if expired is None or self.late is not None or self.writes:
            return None
        if expired.role == SCHEDULER and any(each.recorder != expired.recorder for each in self.reports):
            return None  # it gives back what all ranks kept, and which of them had their reports is not known
        if not self.reports:
            return 0, 1
        expected = _expected(self.reports)
        reports = sum(_rank(each) == _rank(expired) for each in self.reports)
        return None if expected is None or reports >= expected else (reports, expected)

    def is_of_another_launch(self, event: Event) -> bool:
        """Whether an event of the engine that gives is of another launch of it than the hand-off."""
        given = self.given
        return given is not None and None not in (given.launch, event.launch) and given.launch != event.launch

    @property
    def is_given_out(self) -> bool | None:
        """Whether another request was given one of the blocks before the late report; None if that is not known."""
        return True if self.given_out is not None else False if self.followed else None

    @property
    def received(self) -> Iterator[Taker]:
        """Those that have received it, in the order in which they were heard."""
        return (Taker(self.takers[place], load, place in self.recomputed) for place, load in self.loads.items())

    @property
    def done(self) -> list[Received | RequestEnd]:
        """By which of the requests that take need nothing more: the end of a load that went well, or the end of the request
        without one. Older vLLMs report a load that failed as received, and its blocks or its read as failed."""
        failed = self.failed | self.recomputed
        loaded = [load for place, load in self.loads.items() if place not in failed]
        return [*loaded, *(end for place, end in self.over.items() if place not in self.loads and place not in failed)]


class HandOffs:
    """The hand-offs between all engines.

    Attributes:
        apart: the end of a load that another sidecar heard, and that was the first of its hand-off there.
        flows: their sums by the engines.
        on_end: gets each end of a hand-off on either side, once.
    """

    def __init__(self, on_end: Callable[[HandedOver], None] | None = None) -> None:
        self.apart: Event | None = None
        self.flows = Flows()
        self.on_end = on_end
        self._by_key: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        self._named: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        """The last hand-off that was given under a name, by that."""
        self._ambiguous: BoundedDict[str, None] = BoundedDict(MAX_HANDOFFS)
        """Keys of several hand-offs that were kept at the same time: they join nothing."""
        self._given: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        """By the engine and request that give; before those have reported it, if a worker's report came first."""
        self._taken: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        self._takes: BoundedDict[str, Handoff] = BoundedDict(MAX_HANDOFFS)
        """The sides of the requests that take, by the id under which they register their blocks with another engine."""
        self._written: BoundedDict[str, Xfer] = BoundedDict(MAX_HANDOFFS)
        """The last write to each such request."""
        self._unread: BoundedDict[Place, None] = BoundedDict(MAX_HANDOFFS)
        """The requests with a read that failed."""
        self._followed: dict[str, BoundedDict[int, Pair]] = {}
        """By the recorder that saw it, the blocks that were given back and that nobody has been given since."""
        self._launches: BoundedDict[str, str | None] = BoundedDict(MAX_ENGINES)
        """By engine, its last launch that was heard of."""
        self._closed: BoundedDict[tuple[str, str | None], None] = BoundedDict(MAX_ENGINES)
        """Engines that have shut down, by id and launch."""
        self._watched: dict[str, list[Pair]] = {}
        """By the recorder that saw the lease's end, those that nobody needs and no reader has reported."""
        self._undecided: dict[str, dict[Pair, int]] = {}
        """By the recorder that saw the release, those with a reader's report that may be on its way from a worker in another
        process; and since when it is waited for, by that recorder's clock, or 0."""

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

    def about(self, event: Event) -> list[Pair]:
        """The hand-offs that an event of `KINDS` is about, before or after it is entered; of a heartbeat before it, those
        that wait for time to pass; of a request's end after it, one that it was entered for."""
        if isinstance(event, Heartbeat):
            return list(self._watched.get(event.recorder, ()))
        if isinstance(event, Handoff):
            known = self.pair(event)
        else:
            takes = isinstance(event, Received | LoadError | RequestEnd) or _is_failed_read(event)
            known = self.taken_by(event) if takes else self.given_by(event)
            if isinstance(event, RequestEnd) and known is not None and known.over.get(_place(event)) is not event:
                return []
        return [] if known is None else [known]

    def in_order(self, known: Received, event: Received) -> tuple[Received, Received]:
        """Two ends of loads of one hand-off, the one that came first before the other: as they were heard. Where two sidecars
        heard one each, and neither knew of the other, the names of engines and requests decide, in both sidecars alike."""
        return (event, known) if event is self.apart and _place(event) < _place(known) else (known, event)

    def others(self, event: Handoff) -> list[Handoff]:
        """The other side of a hand-off, as far as it is known: the requests that take it, or the one that gives it."""
        pair = self.pair(event)
        if pair is None:
            return []
        if event.handoff_side == Side.GIVES:
            return pair.readers
        return [] if pair.given is None else [pair.given]

    def written(self, event: Handoff | Xfer) -> list[tuple[Handoff, Handoff, Xfer]]:
        """What an event, before it is entered, completes of writes to requests that are to take something else: the side that
        gives what is written, the side of the request, and the write."""
        writes: list[Xfer] = []
        if isinstance(event, Xfer):
            writes = [event] if _is_posted_write(event) else []
        elif event.takes:
            writes = [] if (last := self._written.get(event.request or "")) is None else [last]
        elif (early := self.given_by(event)) is not None and early.given is None:
            writes = list(early.writes.values())
        found = []
        for write in writes:
            pair = self.given_by(write)
            gives, takes = pair and pair.given, self._takes.get(write.peer_request or "")
            if isinstance(event, Handoff):
                gives, takes = (event, takes) if event.handoff_side == Side.GIVES else (gives, event)
            if gives and takes and gives.handoff_keys and not set(gives.handoff_keys) & set(takes.handoff_keys):
                found.append((gives, takes, write))
        return found

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
                pair.released, pair.reports, pair.late = early.released, early.reports, early.late
                pair.writes, pair.open, pair.freed = early.writes, early.open, early.freed
            named = pair.giver
            pair.given = pair.given or event
            self._given[_place(event)] = pair
            if named is None:
                for reader in pair.readers:
                    self._sum_up(pair, reader)
                    self._sum_up_end(pair, pair.counted.get(_place(reader)))
            if early is not None and early is not pair:
                self._given_back(pair)
            self._watch(pair)
        elif len(pair.readers) < MAX_TAKERS and _place(event) not in (pair.takers | pair.declined):
            before = pair.reading_engines
            self._taken[_place(event)] = pair
            if event.declines:
                pair.declined[_place(event)] = event
                pair.unserved.add(_place(event))
                pair.counted[_place(event)] = declined = HandedOver(event, Side.TAKES, Outcome.DECLINED, 0)
                self._report(declined)
            else:
                pair.takers[_place(event)] = event
                self._takes[event.request or ""] = event
            if _place(event) in self._unread:
                pair.failed.add(_place(event))
            self._sum_up(pair, event)
            self._sum_up_end(pair, pair.counted.get(_place(event)))
            if pair.counted_as is not None and pair.given is not None and event.engine not in before:
                self.flows.of(pair.given.engine, event.engine).outcomes[pair.counted_as] += 1
                if not before:
                    self._count_unclaimed(pair, -1)

    def enter_start(self, event: RequestStart) -> None:
        """A request begins: what its recorder has said of one with its id is of another. A worker's report may come first."""
        pair = self._given.get(_place(event))
        said = () if pair is None else (pair.given, pair.freed)
        if any(each and each.recorder == event.recorder and each.sequence < event.sequence for each in said):
            del self._given[_place(event)]

    def enter_xfer(self, event: Xfer) -> None:
        """The engine that gives writes, or has written. That another one reads is known here by its reports, unless it has
        failed to."""
        if event.xfer_op != XferOp.WRITE:
            if _is_failed_read(event):
                self._unread[_place(event)] = None
                if (taken := self.taken_by(event)) is not None:
                    taken.failed.add(_place(event))
                    if _place(event) in taken.unserved:  # the request has ended meanwhile
                        self._end(taken, event, Outcome.FAILED)
            return
        pair = self._giving(event)
        if _is_posted_write(event):
            if len(pair.open) < MAX_REPORTS:
                pair.open.append(event)
            if event.peer_request is not None and len(pair.writes) < MAX_TAKERS:
                pair.writes[event.peer_request] = self._written[event.peer_request] = event
            return
        if event.xfer_state == XferState.DONE and self.is_late(event):
            pair.late = event
        else:
            self._reported(pair, event)
        pair.open = [each for each in pair.open if not _ends(event, each)]

    def is_late(self, event: Read | Xfer) -> bool:
        """Whether an event shows first that blocks were read, or written to the other engine, after they had been given back,
        or in another launch of the engine. A write that is seen to have ended in the moment of the release may have ended
        before it."""
        pair = self.given_by(event)
        if pair is None or pair.late is not None:
            return False
        if pair.is_of_another_launch(event):
            return True
        released = pair.released
        if released is None or released.recorder != event.recorder:
            return False
        if isinstance(event, Read):
            return True
        of_another_rank = (
            released.role != SCHEDULER and released.rank != event.rank
        )  # their blocks are given back together
        return event.end_ns > released.end_ns and not of_another_rank

    def enter_read(self, event: Read) -> None:
        """A reader reports to the engine that gives that it has what it needs."""
        pair = self._giving(event)
        if self.is_late(event):
            pair.late = event
        elif pair.released is None or pair.released.recorder != event.recorder:
            self._reported(pair, event)

    def enter_release(self, event: Free | Sent) -> None:
        """The engine that gives has given the blocks back."""
        pair = self._giving(event) if isinstance(event, Free) else self.given_by(event)
        if pair is None:
            return
        if isinstance(event, Free):
            pair.freed = pair.freed or event
        first = pair.released
        if first is None or (isinstance(first, Sent) and isinstance(event, Free) and first.recorder != event.recorder):
            pair.released = event  # a worker gives back what its scheduler then frees, whichever is heard first
            if first is None:
                self._given_back(pair)
            else:
                self._recount(pair)
            self._watch(pair)
            self._follow(pair)

    def enter_given_out(self, event: Alloc | Schedule, blocks: Iterable[int]) -> None:
        """A request is given blocks that held nothing of its own."""
        if followed := self._followed.get(event.recorder):
            for block in followed.keys() & set(blocks):
                pair = followed.pop(block)
                if pair.followed and pair.late is None and pair.given_out is None:
                    pair.given_out = event

    def mark_gap(self, recorder: str) -> None:
        """Who is given which blocks is not known any more."""
        for pair in self._followed.pop(recorder, {}).values():
            if pair.late is None:
                pair.followed = False

    def _reported(self, pair: Pair, event: Read | Xfer) -> None:
        if len(pair.reports) < MAX_REPORTS:
            pair.reports.append(event)
        self._recount(pair)

    def unacknowledged(self, event: Heartbeat) -> list[Pair]:
        """The hand-offs that nobody needs and that have an ended lease, if the heartbeat's recorder has waited long enough
        for a reader's report."""
        watched = self._watched.get(event.recorder, ())
        return [
            each for each in watched if each.quiet_ns and event.end_ns - each.quiet_ns > ON_ITS_WAY_NS and each.missing
        ]

    def enter_heartbeat(self, event: Heartbeat) -> None:
        """Time has passed, or the recorder has ended."""
        if event.recorder_closed and event.engine in self._launches:
            self._closed[event.engine, event.launch] = None
        if watched := self._watched.get(event.recorder):
            over = self.unacknowledged(event)
            self._watched[event.recorder] = left = [each for each in watched if each.missing and each not in over]
            for pair in left:
                pair.quiet_ns = pair.quiet_ns or event.end_ns
        if undecided := self._undecided.get(event.recorder):
            for pair, since_ns in list(undecided.items()):
                if event.recorder_closed or (since_ns and event.end_ns - since_ns > ON_ITS_WAY_NS):
                    self._decided(pair)
                else:
                    undecided[pair] = since_ns or event.end_ns

    def receives(self, event: Received) -> bool:
        """Whether a request has received the hand-off that it takes, by this event: not if another child of a MultiConnector
        has reported it before."""
        pair = self.taken_by(event)
        return pair is not None and not event.failed and event.error is None and _place(event) not in pair.loads

    def enter_load_error(self, event: LoadError) -> None:
        """A request's blocks were not loaded; it may be one that takes. The same recorder reports that before the load's
        end."""
        if (pair := self.taken_by(event)) is not None:
            pair.recomputed.add(_place(event))

    def is_recomputed(self, event: Received) -> bool:
        """Whether what a request has received, by this event, is computed again."""
        pair = self.taken_by(event)
        return pair is not None and _place(event) in pair.recomputed

    def enter_received(self, event: Received) -> None:
        """A load has ended; it may be that of a request that takes."""
        pair = self.taken_by(event)
        if pair is None:
            return
        if self.receives(event):
            pair.loads[_place(event)] = event
            has_failed = _place(event) in pair.failed | pair.recomputed  # as older vLLMs report it
            self._end(pair, event, Outcome.FAILED if has_failed else Outcome.LOADED)
            self._recount(pair)
            self._watch(pair)
        elif (event.failed or event.error is not None) and _place(event) not in pair.loads:
            pair.failed.add(_place(event))
            self._end(pair, event, Outcome.FAILED)

    def enter_end(self, event: RequestEnd, *, is_known: bool, is_loading: bool = False) -> None:
        """A request has ended; it may be one that takes. `is_known`: all of its events are. `is_loading`: its load is under
        way, and its end is still to be heard: that decides how the hand-off ended."""
        pair = self.taken_by(event)
        if pair is None:
            return
        if _place(event) not in pair.loads:
            pair.unserved.add(_place(event))
            if _place(event) in pair.failed:
                self._end(pair, event, Outcome.FAILED)
            elif not is_loading:
                self._end(pair, event, Outcome.NOT_LOADED)
        if is_known and not is_loading and _place(event) not in pair.failed:
            pair.over[_place(event)] = event
            self._watch(pair)

    def _follow(self, pair: Pair) -> None:
        """Note who gets the blocks that were given back, where the order of that and of a late report will be known."""
        given, released = pair.given, pair.released
        assert released is not None
        pair.followed, pair.given_out = False, None
        if given is not None and given.recorder == released.recorder and given.blocks_ids:
            pair.followed = True
            blocks = self._followed.setdefault(released.recorder, BoundedDict(MAX_BLOCKS))
            blocks.update((block, pair) for block in given.blocks_ids if block != NULL_BLOCK)

    def _end(self, pair: Pair, event: Event, outcome: Outcome) -> None:
        """A request that takes has loaded, or will not: said once of each."""
        place = _place(event)
        if place in pair.counted:
            return
        taker = pair.takers[place]
        lasted_ns = max(0, event.end_ns - taker.start_ns)
        if outcome is not Outcome.LOADED:
            pair.unserved.add(place)
        pair.counted[place] = ended = HandedOver(event, Side.TAKES, outcome, lasted_ns)
        self._sum_up_end(pair, ended)
        self._report(ended)

    def _sum_up_end(self, pair: Pair, ended: HandedOver | None) -> None:
        """A request that takes has ended so, as soon as the engine that gives is known."""
        if ended is not None and (giver := pair.giver) is not None:
            flow = self.flows.of(giver, ended.event.engine)
            flow.outcomes[ended.outcome] += 1
            flow.waited_ns += ended.lasted_ns if ended.outcome is Outcome.LOADED else 0

    def _report(self, ended: HandedOver) -> None:
        if self.on_end is not None:
            self.on_end(ended)

    def _given_back(self, pair: Pair) -> None:
        """The blocks of a hand-off are given back, and both that and the hand-off itself are known now."""
        given, released = pair.given, pair.released
        if given is None or released is None:
            return
        pair.counted_as = outcome = _outcome(pair)
        if not pair.readers:
            self._count_unclaimed(pair, 1)
        for engine in pair.reading_engines:
            self.flows.of(given.engine, engine).outcomes[outcome] += 1
        undecided = self._undecided.setdefault(released.recorder, {}) if self.on_end is not None else {}
        if outcome is Outcome.FREED and len(undecided) < MAX_WATCHED:
            undecided[pair] = 0
        else:
            self._decided(pair)

    def _recount(self, pair: Pair) -> None:
        """More is known of why the blocks of a hand-off were given back."""
        given, before, outcome = pair.given, pair.counted_as, _outcome(pair)
        if given is None or before is None or before is outcome:
            return
        pair.counted_as = outcome
        for engine in pair.reading_engines or (NOBODY,):
            outcomes = self.flows.of(given.engine, engine).outcomes
            outcomes[before] -= 1
            outcomes[outcome] += 1
        if any(pair in undecided for undecided in self._undecided.values()):
            self._decided(pair)

    def _decided(self, pair: Pair) -> None:
        """It is known why the blocks were given back, or will not be: said once of each hand-off."""
        given, released, outcome = pair.given, pair.released, pair.counted_as
        assert given is not None
        assert released is not None
        assert outcome is not None
        for undecided in self._undecided.values():
            undecided.pop(pair, None)
        self._report(HandedOver(released, Side.GIVES, outcome, max(0, released.end_ns - given.end_ns)))

    def _count_unclaimed(self, pair: Pair, more: int) -> None:
        """A hand-off has ended without a known request that takes it, or now one is known."""
        assert pair.given is not None
        flow = self.flows.of(pair.given.engine, NOBODY)
        flow.handoffs += more
        flow.tokens += more * (pair.given.handoff_tokens or 0)
        flow.outcomes[pair.counted_as or _outcome(pair)] += more

    def _sum_up(self, pair: Pair, reader: Handoff) -> None:
        """A request takes, or declines to, as soon as the engine that gives is known."""
        if (giver := pair.giver) is None:
            return
        flow = self.flows.of(giver, reader.engine)
        if not reader.declines:
            flow.handoffs += 1
            flow.tokens += reader.handoff_tokens or reader.prompt or 0

    def _watch(self, pair: Pair) -> None:
        """Wait for a reader's report, if one must be on its way."""
        expired = pair.expired
        if expired is not None and (pair.loads or pair.over) and pair.missing is not None:
            watched = self._watched.setdefault(expired.recorder, [])
            if pair not in watched and len(watched) < MAX_WATCHED:
                watched.append(pair)

    def _giving(self, event: Event) -> Pair:
        pair = self.given_by(event)
        if pair is None:
            pair = self._given[_place(event)] = Pair()
        return pair


def _outcome(pair: Pair) -> Outcome:
    """How a hand-off with returned blocks ended, as the engine that gives knows it."""
    if pair.expired is not None:
        return Outcome.EXPIRED
    return Outcome.READ if pair.reports or pair.loads else Outcome.FREED


def is_known_since(pair: Pair, event: Event, lost_number: int) -> bool:
    """Whether no event of the recorder of `event` is missing since the hand-off was given, or at all if another one gave it;
    the last missing one is that of this number."""
    given = pair.given
    return lost_number < (given.sequence if given is not None and given.recorder == event.recorder else 0)


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


def _is_failed_read(event: Event) -> bool:
    return isinstance(event, Xfer) and event.xfer_op == XferOp.READ and event.xfer_state == XferState.FAILED


def _is_posted_write(event: Xfer) -> bool:
    return event.xfer_op == XferOp.WRITE and event.xfer_state == XferState.POSTED


def _ends(event: Xfer, posted: Xfer) -> bool:
    """Whether a write has ended by this event. If one fails, it may not be known which of the rank's it was."""
    return _rank(event) == _rank(posted) and (
        event.xfer_state == XferState.FAILED
        or (event.peer, event.peer_rank, event.peer_request) == (posted.peer, posted.peer_rank, posted.peer_request)
    )


def _expected(reports: Iterable[Read | Xfer]) -> int | None:
    """How many readers each rank has, as their reports say; None if one does not say so, or none is there."""
    said = [each.notifications_expected for each in reports]
    return max(map(int, filter(None, said))) if said and all(said) else None


def _rank(event: Event) -> tuple[str, int]:
    """The worker of an event; in the process of the scheduler that one's events are those of rank 0."""
    return event.recorder, event.rank


def _place(event: Event) -> Place:
    return event.engine, event.request or ""
