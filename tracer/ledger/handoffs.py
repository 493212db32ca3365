"""Hand-offs: requests that one engine prefills and another decodes, as both engines recorded them.

All recorders share this, as a pair is judged once, whichever side comes first. Sides are joined by what both engines call the
hand-off, and by nothing that a client chooses. The clocks of two engines are never compared: what came first is known where
one recorder recorded both, or where it follows from a message. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import (
    Event,
    Free,
    Handoff,
    Heartbeat,
    Read,
    Received,
    Sent,
    Side,
    Xfer,
    XferOp,
    XferState,
)

MAX_HANDOFFS = 100_000
"""Hand-offs remembered; beyond that the oldest is forgotten."""
MAX_TAKERS = 16
"""Requests remembered that take one hand-off."""
MAX_WATCHED = 1_000
"""Hand-offs of a recorder of which a reader's report is waited for at the same time."""
ON_ITS_WAY_NS = 10 * 10**9
"""For how long a reader's report may be on its way, once its load has been heard of."""
Place = tuple[str, str]
"""An engine and its id of a request."""


class Taker(NamedTuple):
    """A request that has received what was handed over: its side, and the end of its load."""

    event: Handoff
    received: Received


@dataclass(slots=True, eq=False)
class Pair:
    """One hand-off: what is known of the engine that gives, and of the requests that take.

    Attributes:
        given: what is given, and when; None while that engine has not reported it.
        released: when the blocks were given back first, by the lease's end or since they were read.
        reads: the reports of readers before that, or the ends of writes, from the recorder of the release.
        late: the first report of a reader after it, or the first write that ended well after it, from the same recorder.
        writes: what the engine that gives writes, by the other engine's id of the request that it writes to.
        quiet_ns: since when, by the clock of the engine that gives, it is waited for the report of a reader that must have
            read the blocks, though their lease has ended; 0 if it is not.
        takers: the sides of the requests that are to read it, by engine and request.
        loads: the ends of their loads that went well.
    """

    given: Handoff | None = None
    released: Free | Sent | None = None
    reads: int = 0
    late: Read | Xfer | None = None
    writes: dict[str, Xfer] = field(default_factory=dict)
    quiet_ns: int = 0
    takers: dict[Place, Handoff] = field(default_factory=dict)
    loads: dict[Place, Received] = field(default_factory=dict)

    @property
    def expired(self) -> Free | None:
        """The end of the lease, if the blocks were given back by that."""
        return self.released if isinstance(self.released, Free) and self.released.lease_expired else None

    @property
    def received(self) -> Iterator[Taker]:
        """Those that have received it, in the order in which they were heard."""
        return (Taker(self.takers[place], load) for place, load in self.loads.items())


class HandOffs:
    """The hand-offs between all engines."""

    def __init__(self) -> None:
        self._by_key: BoundedDict[str, Pair] = BoundedDict(MAX_HANDOFFS)
        self._given: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        """By the engine and request that give; before those have reported it, if a worker's report came first."""
        self._taken: BoundedDict[Place, Pair] = BoundedDict(MAX_HANDOFFS)
        self._takes: BoundedDict[str, Handoff] = BoundedDict(MAX_HANDOFFS)
        """The sides of the requests that take, by the id under which they register their blocks with another engine."""
        self._written: BoundedDict[str, Xfer] = BoundedDict(MAX_HANDOFFS)
        """The last write to each such request."""
        self._watched: dict[str, list[Pair]] = {}
        """By the recorder that saw the lease's end, those that were received and of which no reader has reported."""

    def given_by(self, event: Event) -> Pair | None:
        """The hand-off that the event's request gives."""
        return self._given.get(_place(event))

    def taken_by(self, event: Event) -> Pair | None:
        """The hand-off that the event's request takes."""
        return self._taken.get(_place(event))

    def pair(self, event: Handoff) -> Pair | None:
        """The hand-off of an event, before it is entered; None if nothing is known of it."""
        known = next((self._by_key[key] for key in event.handoff_keys if key in self._by_key), None)
        return known or (self.given_by(event) if event.handoff_side == Side.GIVES else self.taken_by(event))

    def others(self, event: Handoff) -> list[Handoff]:
        """The other side of a hand-off, as far as it is known: the requests that take it, or the one that gives it."""
        pair = self.pair(event)
        if pair is None:
            return []
        if event.handoff_side == Side.GIVES:
            return list(pair.takers.values())
        return [] if pair.given is None else [pair.given]

    def written(self, event: Handoff | Xfer) -> list[tuple[Handoff, Handoff, Xfer]]:
        """What an event, before it is entered, completes of writes to requests that are to take something else: the side that
        gives what is written, the side of the request, and the write."""
        writes: list[Xfer] = []
        if isinstance(event, Xfer):
            writes = [event] if _is_posted_write(event) else []
        elif event.handoff_side == Side.TAKES:
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

    def enter_handoff(self, event: Handoff) -> None:
        """Enter one side."""
        if not event.handoff_keys:
            return
        pair = self.pair(event) or Pair()
        for key in event.handoff_keys:
            self._by_key.setdefault(key, pair)
        if event.handoff_side == Side.GIVES:
            early = self._given.get(_place(event))
            if early is not None and early is not pair:  # what a worker reported before the scheduler's side was heard
                pair.released, pair.reads, pair.late, pair.writes = (
                    early.released,
                    early.reads,
                    early.late,
                    early.writes,
                )
            pair.given = pair.given or event
            self._given[_place(event)] = pair
        elif len(pair.takers) < MAX_TAKERS:
            pair.takers.setdefault(_place(event), event)
            self._taken[_place(event)] = pair
            self._takes[event.request or ""] = event

    def enter_xfer(self, event: Xfer) -> None:
        """The engine that gives writes, or has written. That another one reads is known here by its reports."""
        if event.xfer_op != XferOp.WRITE:
            return
        pair = self._giving(event)
        if _is_posted_write(event):
            if event.peer_request is not None and len(pair.writes) < MAX_TAKERS:
                pair.writes[event.peer_request] = self._written[event.peer_request] = event
        elif pair.released is None:
            pair.reads += 1
        elif event.xfer_state == XferState.DONE and self.is_late(event):
            pair.late = event
        else:
            pair.reads += 1

    def is_late(self, event: Read | Xfer) -> bool:
        """Whether an event shows first that blocks were read, or written to the other engine, after they had been given back:
        a write of which the end was noticed together with the release may have ended before."""
        pair = self.given_by(event)
        if pair is None or pair.released is None or pair.late is not None or pair.released.recorder != event.recorder:
            return False
        return isinstance(event, Read) or event.end_ns > pair.released.end_ns

    def enter_read(self, event: Read) -> None:
        """A reader reports to the engine that gives that it has what it needs."""
        pair = self._giving(event)
        if pair.released is None:
            pair.reads += 1
        elif self.is_late(event):
            pair.late = event

    def enter_release(self, event: Free | Sent) -> None:
        """The engine that gives has given the blocks back."""
        pair = self._giving(event) if isinstance(event, Free) else self.given_by(event)
        if pair is not None and pair.released is None:
            pair.released = event
            self._watch(pair)

    def unacknowledged(self, event: Heartbeat) -> list[Pair]:
        """The hand-offs that were received and whose lease has ended, and of which the recorder of the heartbeat has waited
        long enough for a reader's report."""
        watched = self._watched.get(event.recorder, ())
        return [
            each for each in watched if each.quiet_ns and event.end_ns - each.quiet_ns > ON_ITS_WAY_NS and not each.late
        ]

    def enter_heartbeat(self, event: Heartbeat) -> None:
        """Time has passed."""
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
        if self.receives(event):
            pair = self._taken[_place(event)]
            pair.loads[_place(event)] = event
            self._watch(pair)

    def _watch(self, pair: Pair) -> None:
        """Wait for a reader's report, if one must be on its way: who writes itself gets none."""
        expired = pair.expired
        if expired is not None and pair.loads and not (pair.reads or pair.late or pair.writes):
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


def _is_posted_write(event: Xfer) -> bool:
    return event.xfer_op == XferOp.WRITE and event.xfer_state == XferState.POSTED


def _place(event: Event) -> Place:
    return event.engine, event.request or ""
