"""Hand-offs: requests that one engine prefills and another decodes, as both engines recorded them.

All recorders share this, since a pair is judged once, whichever side arrives first. Sides are joined by the names that both
engines use, never by values that a client chooses. The clocks of two engines are never compared: the order of two events is
known only if one recorder recorded both, or if a message proves it. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
"""Maximum number of remembered hand-offs; beyond that the oldest is forgotten."""
MAX_BLOCKS = 1_000_000
"""Maximum number of freed blocks that are tracked per recorder."""
MAX_ENGINES = 10_000
"""Maximum number of giving engines whose liveness is remembered."""
MAX_TAKERS = 16
"""Maximum number of remembered taking requests per hand-off."""
MAX_REPORTS = 256
"""Maximum number of remembered reports, or of open writes, per hand-off."""
MAX_WATCHED = 1_000
"""Maximum number of a recorder's hand-offs that wait for a reader's report at once."""
ON_ITS_WAY_NS = 10 * 10**9
"""Maximum delay of a reader's report after the end of its load is known."""
PUSH = "push"
"""The mode of a connector that writes into the decode engine."""
Place = tuple[str, str]
"""An engine and its id of a request."""
KINDS = frozenset({
    Kind.HANDOFF, Kind.READ, Kind.FREE, Kind.SENT, Kind.RECEIVED, Kind.XFER, Kind.LOAD_ERROR, Kind.REQUEST, Kind.HEARTBEAT,
})  # fmt: skip
"""The events that are entered."""


@dataclass(slots=True, eq=False)
class Pair:
    """One hand-off: the known state of the giving engine, and of the taking requests.

    Attributes:
        given: the giving event with the parameters; None until that engine has reported it.
        freed: when the blocks were freed after the request's end, if that was recorded.
        released: the first release of the blocks, at the lease's end or after a read.
        reports: reports of readers, or ends of writes, that are not known to be later than the release.
        late: the first report of a reader, or the first successful end of a write, after the release, from the same
            recorder; or the first report to another launch of the giving engine, which never had these blocks.
        writes: writes of the giving engine, by the other engine's id of the destination request.
        open: the writes that are not known to have ended.
        followed: whether the new holders of the released blocks are known; then `given_out` is reliable.
        given_out: the event that allocated one of them to another request, before the late report.
        quiet_ns: start of the wait for the report of a reader that no longer needs the blocks, although their lease has
            ended, by the giving engine's clock; 0 if there is no such wait.
        takers: the sides of the requests that are to read it, by engine and request.
        declined: the sides of requests that were refused, or disconnected, before they were scheduled.
        loads: the ends of successful loads, in order of arrival, by engine and request.
        failed: requests with a failed load or read: no report need follow.
        counted: the counted ends of the taking requests.
        counted_as: the outcome as which the giving engine's end is counted so far.
        over: the ends of requests that neither loaded nor failed to load, if all their events are known.
        unserved: requests that ended before their load, or failed to load.
        recomputed: requests with blocks that were reported as not loaded, so that vLLM recomputes them.
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
        """The names that both engines use; empty until one of them is known."""
        sides = (*([] if self.given is None else [self.given]), *self.readers)
        return tuple(dict.fromkeys(key for side in sides for key in side.handoff_keys))

    @property
    def giver(self) -> str | None:
        """The giving engine, according to itself or to a reader; None if unknown."""
        if self.given is not None:
            return self.given.engine
        return next((each.handoff_peer for each in self.readers if each.handoff_peer), None)

    @property
    def readers(self) -> list[Handoff]:
        """The sides of the requests that are to read it, and of requests that declined."""
        return [*self.takers.values(), *self.declined.values()]

    @property
    def reading_engines(self) -> set[str]:
        """The engines of these requests."""
        return {engine for engine, _ in (*self.takers, *self.declined)}

    @property
    def waiting(self) -> list[Handoff]:
        """The sides of the requests that have not loaded it yet."""
        return [each for place, each in self.takers.items() if place not in self.loads and place not in self.unserved]

    @property
    def expired(self) -> Free | None:
        """The end of the lease, if it released the blocks."""
        return self.released if isinstance(self.released, Free) and self.released.lease_expired else None

    def settled_by(self, freed: Free) -> Read | Xfer | None:
        """The report after which the rank that released its blocks with this event no longer needed to keep them: the report
        of its last reader, each counted once, or the end of its last write. None if not all are known to be done."""
        here = [each for each in self.reports if _rank(each) == _rank(freed)]
        reads = [each for each in here if isinstance(each, Read)]
        ended = [each for each in here if isinstance(each, Xfer)]
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
        """The number of received and required readers' reports of the rank whose lease ended; None if none is known to be
        missing. A rank that writes gets no reports."""
        expired = self.expired
        if expired is None or self.late is not None or self.writes:
            return None
        if expired.role == SCHEDULER and any(each.recorder != expired.recorder for each in self.reports):
            return None  # it releases the blocks of all ranks, and it is unknown which ranks had their reports
        if not self.reports:
            return 0, 1
        expected = _expected(self.reports)
        reports = sum(_rank(each) == _rank(expired) for each in self.reports)
        return None if expected is None or reports >= expected else (reports, expected)

    def is_of_another_launch(self, event: Event) -> bool:
        """Whether an event of the giving engine belongs to another launch than the hand-off."""
        given = self.given
        return given is not None and None not in (given.launch, event.launch) and given.launch != event.launch

    @property
    def is_given_out(self) -> bool | None:
        """Whether one of the blocks was allocated to another request before the late report; None if unknown."""
        return True if self.given_out is not None else False if self.followed else None

    @property
    def done(self) -> list[Received | RequestEnd]:
        """Events after which a taking request no longer needs the blocks: the end of a successful load, or the end of the
        request without a load. Older vLLMs report a failed load as received, and its blocks or its read as failed."""
        failed = self.failed | self.recomputed
        loaded = [load for place, load in self.loads.items() if place not in failed]
        return [*loaded, *(end for place, end in self.over.items() if place not in self.loads and place not in failed)]


class HandOffs:
    """The hand-offs between all engines.

    Attributes:
        apart: the end of a load that was the first of its hand-off in another sidecar.
        flows: their sums by engines.
        on_end: called once with each end of a hand-off on either side.
    """

    def __init__(self, on_end: Callable[[HandedOver], None] | None = None) -> None:
        self.apart: Event | None = None
        self.flows = Flows()
        self.on_end = on_end
        self._by_key: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        self._named: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        """The last hand-off given under each name."""
        self._ambiguous: BoundedDict[str, None] = BoundedDict(MAX_HANDOFFS)
        """Keys of several hand-offs that were kept at the same time: they cannot join sides."""
        self._given: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        """By giving engine and request; also before they have reported it, if a worker's report arrived first."""
        self._taken: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        self._takes: BoundedDict[str, Handoff] = BoundedDict(MAX_HANDOFFS)
        """The sides of the taking requests, by the id with which they register their blocks with another engine."""
        self._written: BoundedDict[str, Xfer] = BoundedDict(MAX_HANDOFFS)
        """The last write to each such request."""
        self._unread: BoundedDict[Place, None] = BoundedDict(MAX_HANDOFFS)
        """The requests with a failed read."""
        self._followed: dict[str, BoundedDict[int, Pair]] = {}
        """By recorder, the released blocks that have not been allocated since."""
        self._launches: BoundedDict[str, str | None] = BoundedDict(MAX_ENGINES)
        """By engine, its last known launch."""
        self._closed: BoundedDict[tuple[str, str | None], None] = BoundedDict(MAX_ENGINES)
        """Engines that have shut down, by id and launch."""
        self._watched: dict[str, list[Pair]] = {}
        """By the recorder of the lease's end, hand-offs that no request needs and no reader has reported."""
        self._undecided: dict[str, dict[Pair, int]] = {}
        """By the recorder of the release, hand-offs with a reader's report that may still arrive from a worker in another
        process; and the start of the wait by that recorder's clock, or 0."""

    def given_by(self, event: Event) -> Pair | None:
        """The hand-off that the event's request gave."""
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
        """A name of the given hand-off that another hand-off, which is still kept, also has, and that hand-off."""
        for name in _names(event):
            pair = self._named.get(name)
            if pair is not None and pair.given is not None and pair.released is None and _is_of_another(pair, event):
                return name, pair.given
        return None

    def about(self, event: Event) -> list[Pair]:
        """The hand-offs of an event of `KINDS`, before or after it is entered. Before a heartbeat: hand-offs with a running
        deadline. After a request's end: the hand-off that it was entered for."""
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
        """Two ends of loads of one hand-off, in order of arrival. If two sidecars received one each without knowing the
        other, the names of engines and requests decide, in the same way in both sidecars."""
        return (event, known) if event is self.apart and _place(event) < _place(known) else (known, event)

    def others(self, event: Handoff) -> list[Handoff]:
        """The known other side of a hand-off: the taking requests, or the giving one."""
        pair = self.pair(event)
        if pair is None:
            return []
        if event.handoff_side == Side.GIVES:
            return pair.readers
        return [] if pair.given is None else [pair.given]

    def written(self, event: Handoff | Xfer) -> list[tuple[Handoff, Handoff, Xfer]]:
        """Writes to requests that were to take another hand-off, which an event, before it is entered, completes: the giving
        side, the side of the request, and the write."""
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
        """Whether the giving engine of the event's request has ended: `restarted` or `shut down`; None if unknown."""
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
            if early is not None and early is not pair:  # a worker's reports that arrived before the scheduler's
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
                self.flows[pair.given.engine, event.engine].outcomes[pair.counted_as] += 1
                if not before:
                    self._count_unclaimed(pair, -1)

    def enter_start(self, event: RequestStart) -> None:
        """Enter the start of a request: its recorder's earlier events with this id belong to another request. A worker's
        report may arrive first."""
        pair = self._given.get(_place(event))
        said = () if pair is None else (pair.given, pair.freed)
        if any(each and each.recorder == event.recorder and each.sequence < event.sequence for each in said):
            del self._given[_place(event)]

    def enter_xfer(self, event: Xfer) -> None:
        """Enter a write of the giving engine. Reads of another engine are known from its reports, unless they failed."""
        if event.xfer_op != XferOp.WRITE:
            if _is_failed_read(event):
                self._unread[_place(event)] = None
                if (taken := self.taken_by(event)) is not None:
                    taken.failed.add(_place(event))
                    if _place(event) in taken.unserved:  # the request has ended in the meantime
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
        """Whether an event is the first to show that blocks were read, or written to the other engine, after their release,
        or in another launch of the engine. A write whose end is observed together with the release may have ended before
        it."""
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
        if released.role != SCHEDULER and released.rank != event.rank:
            return False  # each rank releases its own blocks
        return event.end_ns > released.end_ns

    def enter_read(self, event: Read) -> None:
        """Enter a reader's report to the giving engine that it has read the blocks."""
        pair = self._giving(event)
        if self.is_late(event):
            pair.late = event
        elif pair.released is None or pair.released.recorder != event.recorder:
            self._reported(pair, event)

    def enter_release(self, event: Free | Sent) -> None:
        """Enter that the giving engine has released the blocks."""
        pair = self._giving(event) if isinstance(event, Free) else self.given_by(event)
        if pair is None:
            return
        if isinstance(event, Free):
            pair.freed = pair.freed or event
        first = pair.released
        if first is None or (isinstance(first, Sent) and isinstance(event, Free) and first.recorder != event.recorder):
            # A worker releases blocks and its scheduler frees them; either report may arrive first.
            pair.released = event
            if first is None:
                self._given_back(pair)
            else:
                self._recount(pair)
            self._watch(pair)
            self._follow(pair)

    def enter_given_out(self, event: Alloc | Schedule, blocks: Iterable[int]) -> None:
        """Enter that new blocks were allocated to a request."""
        if followed := self._followed.get(event.recorder):
            for block in followed.keys() & set(blocks):
                pair = followed.pop(block)
                if pair.followed and pair.late is None and pair.given_out is None:
                    pair.given_out = event

    def mark_gap(self, recorder: str) -> None:
        """Note that allocations of blocks are no longer known."""
        for pair in self._followed.pop(recorder, {}).values():
            if pair.late is None:
                pair.followed = False

    def _reported(self, pair: Pair, event: Read | Xfer) -> None:
        if len(pair.reports) < MAX_REPORTS:
            pair.reports.append(event)
        self._recount(pair)

    def unacknowledged(self, event: Heartbeat) -> list[Pair]:
        """The hand-offs with an ended lease that no request needs, if the heartbeat's recorder has waited long enough for a
        reader's report."""
        watched = self._watched.get(event.recorder, ())
        return [
            each for each in watched if each.quiet_ns and event.end_ns - each.quiet_ns > ON_ITS_WAY_NS and each.missing
        ]

    def enter_heartbeat(self, event: Heartbeat) -> None:
        """Enter that time has passed, or that the recorder has ended."""
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
        """Whether a request has received its hand-off with this event; False if another child of a MultiConnector reported it
        before."""
        pair = self.taken_by(event)
        return pair is not None and not event.failed and event.error is None and _place(event) not in pair.loads

    def enter_load_error(self, event: LoadError) -> None:
        """Enter blocks that were not loaded for a request, which may be a taking one. The same recorder reports this before
        the load's end."""
        if (pair := self.taken_by(event)) is not None:
            pair.recomputed.add(_place(event))

    def is_recomputed(self, event: Received) -> bool:
        """Whether the blocks that a request received with this event are recomputed."""
        pair = self.taken_by(event)
        return pair is not None and _place(event) in pair.recomputed

    def enter_received(self, event: Received) -> None:
        """Enter the end of a load, possibly of a taking request."""
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
        """Enter the end of a request, possibly a taking one. `is_known`: all its events are known. `is_loading`: the end of
        its load is still to come, and decides how the hand-off ended."""
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
        """Track new holders of the released blocks, if the order of allocations and of a late report can be known."""
        given, released = pair.given, pair.released
        assert released is not None
        pair.followed, pair.given_out = False, None
        if given is not None and given.recorder == released.recorder and given.blocks_ids:
            pair.followed = True
            blocks = self._followed.setdefault(released.recorder, BoundedDict(MAX_BLOCKS))
            blocks.update((block, pair) for block in given.blocks_ids if block != NULL_BLOCK)

    def _end(self, pair: Pair, event: Event, outcome: Outcome) -> None:
        """Report once that a taking request has loaded, or will not."""
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
        """Count this end of a taking request, as soon as the giving engine is known."""
        if ended is not None and (giver := pair.giver) is not None:
            flow = self.flows[giver, ended.event.engine]
            flow.outcomes[ended.outcome] += 1
            flow.waited_ns += ended.lasted_ns if ended.outcome is Outcome.LOADED else 0

    def _report(self, ended: HandedOver) -> None:
        if self.on_end is not None:
            self.on_end(ended)

    def _given_back(self, pair: Pair) -> None:
        """Note that the blocks of a hand-off are released, when both the release and the hand-off are known."""
        given, released = pair.given, pair.released
        if given is None or released is None:
            return
        pair.counted_as = outcome = _outcome(pair)
        if not pair.readers:
            self._count_unclaimed(pair, 1)
        for engine in pair.reading_engines:
            self.flows[given.engine, engine].outcomes[outcome] += 1
        undecided = self._undecided.setdefault(released.recorder, {}) if self.on_end is not None else {}
        if outcome is Outcome.FREED and len(undecided) < MAX_WATCHED:
            undecided[pair] = 0
        else:
            self._decided(pair)

    def _recount(self, pair: Pair) -> None:
        """Enter more evidence of why the blocks of a hand-off were released."""
        given, before, outcome = pair.given, pair.counted_as, _outcome(pair)
        if given is None or before is None or before is outcome:
            return
        pair.counted_as = outcome
        for engine in pair.reading_engines or (NOBODY,):
            outcomes = self.flows[given.engine, engine].outcomes
            outcomes[before] -= 1
            outcomes[outcome] += 1
        if any(pair in undecided for undecided in self._undecided.values()):
            self._decided(pair)

    def _decided(self, pair: Pair) -> None:
        """Report once for each hand-off why the blocks were released, or that the reason will stay unknown."""
        given, released, outcome = pair.given, pair.released, pair.counted_as
        assert given is not None
        assert released is not None
        assert outcome is not None
        for undecided in self._undecided.values():
            undecided.pop(pair, None)
        self._report(HandedOver(released, Side.GIVES, outcome, max(0, released.end_ns - given.end_ns)))

    def _count_unclaimed(self, pair: Pair, more: int) -> None:
        """Count a hand-off that ended without a known taking request, or correct this when one becomes known."""
        assert pair.given is not None
        flow = self.flows[pair.given.engine, NOBODY]
        flow.handoffs += more
        flow.tokens += more * (pair.given.handoff_tokens or 0)
        flow.outcomes[pair.counted_as or _outcome(pair)] += more

    def _sum_up(self, pair: Pair, reader: Handoff) -> None:
        """Count a request that takes or declines, as soon as the giving engine is known."""
        if (giver := pair.giver) is None:
            return
        flow = self.flows[giver, reader.engine]
        if not reader.declines:
            flow.handoffs += 1
            flow.tokens += reader.handoff_tokens or reader.prompt or 0

    def _watch(self, pair: Pair) -> None:
        """Wait for a reader's report, if one must still arrive."""
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
    """How a hand-off with released blocks ended, according to the giving engine."""
    if pair.expired is not None:
        return Outcome.EXPIRED
    return Outcome.READ if pair.reports or pair.loads else Outcome.FREED


def is_known_since(pair: Pair, event: Event, lost_number: int) -> bool:
    """Whether no event of the recorder of `event` is missing since the hand-off was given, or at all if another recorder gave
    it. `lost_number` is the number of the last missing event."""
    given = pair.given
    return lost_number < (given.sequence if given is not None and given.recorder == event.recorder else 0)


def _names(event: Handoff) -> list[str]:
    """The names of a hand-off on the giving engine. A connector that pushes also matches the two engines' requests by the
    client's id."""
    names = list(event.handoff_keys)
    if event.handoff_mode == PUSH and event.external:
        names.append(f"request_id:{event.engine}/{event.external}")
    return names


def _is_of_another(pair: Pair, event: Handoff) -> bool:
    """Whether the given hand-off differs from that of the event."""
    return pair.given is not None and _place(pair.given) != _place(event)


def _is_failed_read(event: Event) -> bool:
    return isinstance(event, Xfer) and event.xfer_op == XferOp.READ and event.xfer_state == XferState.FAILED


def _is_posted_write(event: Xfer) -> bool:
    return event.xfer_op == XferOp.WRITE and event.xfer_state == XferState.POSTED


def _ends(event: Xfer, posted: Xfer) -> bool:
    """Whether a write ended with this event. If a write fails, it may be unknown which of the rank's writes it was."""
    return _rank(event) == _rank(posted) and (
        event.xfer_state == XferState.FAILED
        or (event.peer, event.peer_rank, event.peer_request) == (posted.peer, posted.peer_rank, posted.peer_request)
    )


def _expected(reports: Iterable[Read | Xfer]) -> int | None:
    """The number of readers of each rank according to their reports; None if a report does not say, or there is none."""
    said = [each.notifications_expected for each in reports]
    return max(map(int, filter(None, said))) if said and all(said) else None


def _rank(event: Event) -> tuple[str, int]:
    """The worker of an event; events in the scheduler's process belong to rank 0."""
    return event.recorder, event.rank


def _place(event: Event) -> Place:
    return event.engine, event.request or ""
