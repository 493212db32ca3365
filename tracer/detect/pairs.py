"""Hand-offs as several sidecars hear them, or one before and after it was started again.

Each event of a hand-off that enters the ledger is given to a listener, who keeps it. What was kept is heard later: by the
same sidecar when it starts again, and by others that have another side of the hand-off. There it enters the same ledger, and
the same rules judge it. A finding is made where the engine of its request reports, and nowhere else: so it is made once.
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
"""Events that were heard and are recognized when they come again."""
MAX_UNNAMED, MAX_EARLY = 10_000, 8
"""Requests with reports of workers that wait for the name of their hand-off, and how many of each."""
Number = tuple[str, int]
"""A recorder, and its number of an event."""


class RemoteHandoff(NamedTuple):
    """An event of a hand-off, as a sidecar entered it.

    Attributes:
        event: it.
        request: the request of its engine that gives or takes; of a heartbeat the one that it is about.
        keys: what the hand-off is called; nothing as long as that is not known.
        lost_number: the number of the last event of its recorder that was missing by then.
        loads: how many requests had received the hand-off by then, as far as this sidecar knew.
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
        kinds: of the events that it judges or enters.
        handoffs: what is known of them.
    """

    def __init__(
        self,
        judges: tuple[Judges, Judges],
        judgements: Judgements,
        handoffs: HandOffs,
        listener: Callable[[RemoteHandoff], None] | None,
        came_before: Mapping[str, int],
    ) -> None:
        """`judges` are those for an engine with requests that are not recorded, and for any other; `handoffs` is empty;
        `listener` and `came_before` as the detector has them."""
        self.handoffs = handoffs
        self.kinds: frozenset[Kind] = KINDS.union(*judges)
        self._judges = tuple(map(by_field, judges))
        self._judgements, self._listener = judgements, listener
        self._came_before = came_before
        self._heard: BoundedDict[Number, None] = BoundedDict(MAX_HEARD)
        self._unnamed: BoundedDict[Place, list[RemoteHandoff]] = BoundedDict(MAX_UNNAMED)
        """What was entered of hand-offs before it was known what they are called."""
        self._waiting: list[Pair] = []
        """The hand-offs of a heartbeat that is being entered."""
        self._aside = HandOffs()

    def before(self, event: Event, engine: Engine) -> None:
        """Judge an event that is to be entered into the state of its engine. One that was heard before is not judged again,
        and once it is entered the hand-offs are as they were."""
        # A heartbeat that comes again has let time pass before: those that some hand-off waited for were kept.
        has_passed = isinstance(event, Heartbeat) and event.sequence <= self._came_before.get(event.recorder, -1)
        if has_passed or _number(event) in self._heard:
            engine.handoffs = self._aside
            return
        self._judge(event, engine)
        self._waiting = self.handoffs.about(event) if isinstance(event, Heartbeat) else []

    def after(self, event: Event, engine: Engine) -> None:
        """The event is entered."""
        if engine.handoffs is self._aside:
            engine.handoffs, self._aside = self.handoffs, HandOffs()
        elif self._listener is not None and event.kind in KINDS:
            for pair in self._waiting or self.handoffs.about(event):
                self._keep(event, pair, engine.lost_number)

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> list[RemoteHandoff]:
        """Judge and enter events that were kept, in the order in which a sidecar entered them; returns those that were not
        heard before."""
        fresh = []
        on_end, self.handoffs.on_end = self.handoffs.on_end, None  # whoever kept them has counted them
        for heard in those:
            # A recorder elsewhere is one for each hand-off: of its others, what it said may still be on its way.
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
                if isinstance(event, RequestEnd):  # whoever kept it knew all of the request
                    self.handoffs.enter_end(event, is_known=True)
                else:
                    engine.apply(event)
                self.handoffs.mark_gap(event.recorder)  # allocations are not kept
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
