"""Hand-offs observed by several sidecars, or by one sidecar before and after a restart.

Each event of a hand-off that enters the ledger is passed to a listener, which stores it. Stored events are read later: by the
same sidecar after a restart, and by others that have the other side of the hand-off. There they enter the same ledger, and
the same rules judge them. Only the sidecar to which the request's engine reports makes a finding, so it is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from kvtrail.tracer.detect.judgements import ELSEWHERE, Judgements, by_field
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, Heartbeat, RequestEnd
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import KINDS, HandOffs, Pair, Place
from kvtrail.tracer.rules.rule_set import Judges

MAX_HEARD = 200_000
"""Maximum number of remembered events, to recognize duplicates."""
MAX_UNNAMED, MAX_EARLY = 10_000, 8
"""Maximum number of requests whose workers' reports wait for the name of their hand-off, and of reports for each."""
Number = tuple[str, int]
"""A recorder, and its number of an event."""


class RemoteHandoff(NamedTuple):
    """An event of a hand-off that a sidecar entered.

    Attributes:
        event: the event.
        request: its engine's request that gives or takes; for a heartbeat, the request of the deadline.
        keys: the names of the hand-off; empty until they are known.
        lost_number: the number of its recorder's last missing event at that time.
        loads: the number of requests that had received the hand-off at that time, as known to this sidecar.
        is_own: whether the engine reports to this sidecar.
    """

    event: Event
    request: str
    keys: tuple[str, ...]
    lost_number: int
    loads: int
    is_own: bool = True


class Pairs:
    """Judges and enters the events of hand-offs.

    Attributes:
        kinds: the kinds of events that it judges or enters.
        handoffs: the known hand-offs.
    """

    def __init__(
        self,
        judges: tuple[Judges, Judges],
        judgements: Judgements,
        handoffs: HandOffs,
        listener: Callable[[RemoteHandoff], None] | None,
        came_before: Mapping[str, int],
    ) -> None:
        """`judges` are the judges for an engine with unrecorded requests, and for any other; `handoffs` is empty; `listener`
        and `came_before` are the detector's."""
        self.handoffs = handoffs
        self.kinds: frozenset[Kind] = KINDS.union(*judges)
        self._judges = tuple(map(by_field, judges))
        self._judgements, self._listener = judgements, listener
        self._came_before = came_before
        self._heard: BoundedDict[Number, None] = BoundedDict(MAX_HEARD)
        self._unnamed: BoundedDict[Place, list[RemoteHandoff]] = BoundedDict(MAX_UNNAMED)
        """Events of hand-offs that were entered before the hand-off's name was known."""
        self._waiting: list[Pair] = []
        """The hand-offs of the heartbeat that is being entered."""
        self._aside = HandOffs()

    def before(self, event: Event, engine: Engine) -> None:
        """Judge an event that is about to be entered into the state of its engine. An event that arrived before is not judged
        again, and does not change the hand-offs."""
        # A repeated heartbeat has advanced the time before: heartbeats that some hand-off waited for were stored.
        has_passed = isinstance(event, Heartbeat) and event.sequence <= self._came_before.get(event.recorder, -1)
        if has_passed or _number(event) in self._heard:
            engine.handoffs = self._aside
            return
        self._judge(event, engine)
        self._waiting = self.handoffs.about(event) if isinstance(event, Heartbeat) else []

    def after(self, event: Event, engine: Engine) -> None:
        """Note that the event is entered."""
        if engine.handoffs is self._aside:
            engine.handoffs, self._aside = self.handoffs, HandOffs()
        elif self._listener is not None and event.kind in KINDS:
            for pair in self._waiting or self.handoffs.about(event):
                self._keep(event, pair, engine.lost_number)

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> list[RemoteHandoff]:
        """Judge and enter stored events, in the order in which a sidecar entered them; returns the new ones among them."""
        fresh = []
        on_end, self.handoffs.on_end = self.handoffs.on_end, None  # the sidecar that stored them has counted them
        for heard in those:
            # A recorder of another sidecar is separate for each hand-off: its events about other hand-offs may arrive later.
            name = heard.event.recorder if heard.is_own else f"{ELSEWHERE}{heard.event.recorder}/{heard.request}"
            event = structs.replace(heard.event, recorder=name)
            if _number(event) in self._heard:
                continue
            fresh.append(heard)
            self._heard[_number(event)] = None
            if heard.is_own and not heard.keys:
                self._not_named(heard)
            engine = Engine(handoffs=self.handoffs, lost_number=heard.lost_number)
            self.handoffs.apart = event if not heard.is_own and not heard.loads else None
            self._judge(event, engine)
            try:
                if isinstance(event, RequestEnd):  # the sidecar that stored it knew the whole request
                    self.handoffs.enter_end(event, is_known=True)
                else:
                    engine.apply(event)
                self.handoffs.mark_gap(event.recorder)  # allocations are not stored
            except Exception as error:
                self._judgements.failed("engine", error)
            self.handoffs.apart = None
        self.handoffs.on_end = on_end
        return fresh

    def _judge(self, event: Event, engine: Engine) -> None:
        blind, whole = self._judges
        self._judgements.ask((whole if engine.blind is None else blind).get(event.kind, ()), event, engine)

    def _keep(self, event: Event, pair: Pair, lost_number: int) -> None:
        assert self._listener is not None
        request = event.request or (pair.released.request if pair.released is not None else None) or ""
        loads = len(pair.loads) - (event.kind is Kind.RECEIVED)
        heard = RemoteHandoff(event, request, pair.keys, lost_number, loads)
        if heard.keys:
            for early in self._unnamed.pop((event.engine, request), ()):
                self._listener(early._replace(keys=heard.keys))
        else:
            self._not_named(heard)
        self._listener(heard)

    def _not_named(self, heard: RemoteHandoff) -> None:
        some = self._unnamed.setdefault((heard.event.engine, heard.request), [])
        if len(some) < MAX_EARLY:
            some.append(heard)


def _number(event: Event) -> Number:
    return event.recorder, event.sequence
