"""What happens to recorded histories on their way to a verdict, as small functions that can be mixed, by seed.

A history is sent in batches, as recorders send it. A damage takes a `Delivery` and gives another one. Numbers are never
changed to hide a loss: where events are lost, their numbers are missing. Only what a recorder itself does not record,
because of a sampler, leaves no gap, and then each of its events says so.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from kvtrail.tracer.events.events import CutOff, Event, Heartbeat, RequestEnd, RequestStart
from kvtrail.tracer.events.semconv import CUT_OFF

S = 10**9
EVERY_NS = S // 2
"""A recorder sends what it has every half a second."""
MOST = 512
"""Events of a batch at most."""
LATENCY_NS = S // 50
HOUR_NS = 3600 * S


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one recorder that arrive together, at a moment of the sidecar's clock."""

    at_ns: int
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What arrives at a sidecar.

    Attributes:
        batches: in no particular order; each has its moment.
        restarts: the moments at which the sidecar has started again.
        damages: what was done, by name.
    """

    batches: tuple[Batch, ...]
    restarts: tuple[int, ...] = ()
    damages: tuple[str, ...] = ()

    @property
    def events(self) -> list[Event]:
        """All that arrives, in the order of arrival."""
        return [event for batch in self.in_order() for event in batch.events]

    def in_order(self) -> list[Batch]:
        """The batches in the order of arrival."""
        return sorted(self.batches, key=lambda batch: batch.at_ns)

    def span_ns(self) -> tuple[int, int]:
        """The first and the last arrival; nothing has neither."""
        times = [batch.at_ns for batch in self.batches] or [0]
        return min(times), max(times)


Damage = Callable[[Delivery, random.Random], Delivery]


def sent(events: Iterable[Event]) -> Delivery:
    """A history as its recorders send it: everything arrives, soon and in order."""
    rooms: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
    latest: dict[str, int] = {}
    for event in sorted(events, key=lambda event: event.sequence):
        latest[event.recorder] = max(latest.get(event.recorder, 0), event.end_ns // EVERY_NS)
        rooms[event.recorder, latest[event.recorder]].append(event)
    return Delivery(
        batches=tuple(
            Batch((room + 1) * EVERY_NS + LATENCY_NS, tuple(events[first : first + MOST]))
            for (_, room), events in sorted(rooms.items(), key=lambda item: item[0][1])
            for first in range(0, len(events), MOST)
        )
    )


def lives(*histories: Sequence[Event], pause_s: float = 20.0) -> list[Event]:
    """Several histories, one after the other: an engine that starts again, with the same ids."""
    joined: list[Event] = []
    for events in histories:
        shift_ns = 0
        if joined:
            first_ns = min(event.end_ns for event in events)
            shift_ns = max(event.end_ns for event in joined) + int(pause_s * S) - first_ns
        joined += [
            structs.replace(event, start_ns=event.start_ns + shift_ns, end_ns=event.end_ns + shift_ns)
            for event in events
        ]
    return joined


# What a recorder does.


def sampled_by_flag(delivery: Delivery, rng: random.Random) -> Delivery:
    """Requests that the sampler leaves out are recorded all the same, and say so on each event."""
    out = _left_out(delivery, rng)
    return _changed(delivery, lambda event: structs.replace(event, sampled=False) if event.request in out else event)


def sampled_only(delivery: Delivery, rng: random.Random) -> Delivery:
    """Requests that the sampler leaves out are not recorded, and get no numbers. Each event says that it is so."""
    out = _left_out(delivery, rng)
    numbers: dict[str, dict[int, int]] = {}
    for recorder, events in by_recorder(delivery).items():
        kept = sorted({event.sequence for event in events if event.request not in out})
        numbers[recorder] = {number: place for place, number in enumerate(kept)}

    def recorded(event: Event) -> Event | None:
        if event.request in out:
            return None
        changed = structs.replace(event, sequence=numbers[event.recorder][event.sequence], sampled_only=True)
        if isinstance(changed, Heartbeat):
            changed.recorder_recorded = changed.sequence
        return changed

    return _changed(delivery, recorded)


def clock_off(delivery: Delivery, rng: random.Random) -> Delivery:
    """A recorder's clock is wrong by up to an hour."""
    offset_ns = _off(rng)
    return _with_clock(delivery, rng, lambda at_ns, _: at_ns + offset_ns, chance=0.7)


def clock_drifts(delivery: Delivery, rng: random.Random) -> Delivery:
    """A recorder's clock goes too fast or too slow, by a thousandth."""
    rate = rng.choice([-1e-3, 1e-3])
    return _with_clock(delivery, rng, lambda at_ns, first_ns: at_ns + int((at_ns - first_ns) * rate), chance=0.7)


def clock_jumps(delivery: Delivery, rng: random.Random) -> Delivery:
    """A recorder's clock is set in the middle, by up to an hour, forwards or back."""
    jump_ns, moment_ns = _off(rng), _a_moment(delivery, rng)
    return _with_clock(delivery, rng, lambda at_ns, _: at_ns + jump_ns if at_ns > moment_ns else at_ns, chance=0.7)


# What gets lost.


def lose_some(delivery: Delivery, rng: random.Random) -> Delivery:
    """Each event with the same chance."""
    share = rng.choice([0.001, 0.01, 0.1, 0.5, 0.9])
    return _changed(delivery, lambda event: None if rng.random() < share else event)


def lose_one(delivery: Delivery, rng: random.Random) -> Delivery:
    """One event of all."""
    return _without(delivery, {id(rng.choice(events))} if (events := delivery.events) else set())


def lose_batches(delivery: Delivery, rng: random.Random) -> Delivery:
    """Whole batches."""
    share = rng.choice([0.02, 0.2, 0.6])
    return replace(delivery, batches=tuple(batch for batch in delivery.batches if rng.random() >= share))


def lose_first(delivery: Delivery, rng: random.Random) -> Delivery:
    """The first events of a recorder."""
    events = _a_recorder(delivery, rng)
    return _without(delivery, set(map(id, events[: _few(rng, len(events))])))


def lose_last(delivery: Delivery, rng: random.Random) -> Delivery:
    """The last events of a recorder."""
    events = _a_recorder(delivery, rng)
    return _without(delivery, set(map(id, events[len(events) - _few(rng, len(events)) :])))


def lose_stretch(delivery: Delivery, rng: random.Random) -> Delivery:
    """Events of a recorder that follow each other, as when its ring runs over."""
    events = _a_recorder(delivery, rng)
    first = rng.randrange(len(events) + 1)
    return _without(delivery, set(map(id, events[first : first + _few(rng, len(events))])))


def lose_kind(delivery: Delivery, rng: random.Random) -> Delivery:
    """Events of one kind, some or all of them."""
    kind = rng.choice(sorted({event.kind for event in delivery.events}) or [None])
    share = rng.choice([0.1, 0.5, 1.0])
    return _changed(delivery, lambda event: None if event.kind == kind and rng.random() < share else event)


def lose_end_of_request(delivery: Delivery, rng: random.Random) -> Delivery:
    """The last events of some requests."""
    requests = sorted({event.request for event in delivery.events if event.request is not None})
    gone = {request: rng.randrange(8) for request in requests if rng.random() < 0.3}
    return _changed(
        delivery,
        lambda e: None if e.request in gone and e.request_sequence >= gone[e.request] else e,  # type: ignore[index]
    )


# What comes otherwise than it was sent.


def repeat_some(delivery: Delivery, rng: random.Random) -> Delivery:
    """Events and batches come again, at any later time."""
    _, last_ns = delivery.span_ns()
    again = [
        Batch(
            rng.randrange(batch.at_ns, max(batch.at_ns, last_ns) + 20 * S),
            rng.choice([batch.events, _part(batch, rng)]),
        )
        for batch in delivery.batches
        if rng.random() < 0.2
    ]
    return replace(delivery, batches=(*delivery.batches, *again))


def mix_within(delivery: Delivery, rng: random.Random) -> Delivery:
    """Any order within a batch."""
    return replace(
        delivery,
        batches=tuple(Batch(b.at_ns, tuple(rng.sample(b.events, k=len(b.events)))) for b in delivery.batches),
    )


def mix_between(delivery: Delivery, rng: random.Random) -> Delivery:
    """Batches overtake each other: by less than the sidecar's patience, or by more."""
    late_ns = int(rng.choice([0.1, 1.0, 8.0, 40.0, 400.0]) * S)
    return replace(delivery, batches=tuple(Batch(b.at_ns + rng.randrange(late_ns), b.events) for b in delivery.batches))


def mix_all(delivery: Delivery, rng: random.Random) -> Delivery:
    """Any order at all, one event at a time, all of them at about the same time: as a file is read."""
    events = delivery.events
    rng.shuffle(events)
    _, last_ns = delivery.span_ns()
    return replace(delivery, batches=tuple(Batch(last_ns + number, (event,)) for number, event in enumerate(events)))


# What happens to the sidecar.


def late_start(delivery: Delivery, rng: random.Random) -> Delivery:
    """It begins to listen when the engine has been running for a while."""
    moment_ns = _a_moment(delivery, rng)
    return replace(delivery, batches=tuple(batch for batch in delivery.batches if batch.at_ns >= moment_ns))


def restart(delivery: Delivery, rng: random.Random) -> Delivery:
    """It is away for a while; what is sent meanwhile comes when it is back, or never."""
    from_ns = _a_moment(delivery, rng)
    until_ns = from_ns + int(rng.choice([0.0, 3.0, 30.0]) * S)
    lost = rng.random() < 0.5
    batches = [
        Batch(until_ns + number, batch.events) if from_ns <= batch.at_ns < until_ns else batch
        for number, batch in enumerate(delivery.in_order())
        if not (lost and from_ns <= batch.at_ns < until_ns)
    ]
    return replace(delivery, batches=tuple(batches), restarts=(*delivery.restarts, until_ns))


# What happens to a recorder, or to its export process.


def no_goodbye(delivery: Delivery, rng: random.Random) -> Delivery:
    """Recorders end without a word."""
    return _changed(delivery, lambda event: None if isinstance(event, Heartbeat) and event.recorder_closed else event)


def killed(delivery: Delivery, rng: random.Random) -> Delivery:
    """A recorder ends in the middle: nothing more of it comes."""
    events = _a_recorder(delivery, rng)
    return _without(delivery, set(map(id, events[rng.randrange(len(events) + 1) :])))


def last_words(delivery: Delivery, rng: random.Random) -> Delivery:
    """An engine is killed in the middle, and its export process says what is left: the roots of the open requests, and the
    goodbye. The engine may have hung before."""
    events = _a_recorder(delivery, rng)
    said = events[: rng.randrange(len(events) + 1)]
    if not said:
        return delivery
    rest = _without(delivery, set(map(id, events[len(said) :])))
    ends_ns = max(event.end_ns for event in said) + rng.choice([0, S, 600 * S])
    last = ended(said, ends_ns)
    return replace(rest, batches=(*rest.batches, Batch(max(batch.at_ns for batch in delivery.batches), tuple(last))))


def ended(said: Sequence[Event], at_ns: int) -> list[Event]:
    """What an export process says of an engine that has said so much."""
    open_: dict[str, Event] = {}
    for event in said:
        if isinstance(event, RequestEnd):
            open_.pop(event.request or "", None)
        elif event.request is not None and (isinstance(event, RequestStart) or event.request in open_):
            begun = open_.get(event.request, event)
            open_[event.request] = structs.replace(
                begun, request_sequence=event.request_sequence + 1, epoch=max(begun.epoch, event.epoch)
            )
    sequence = max(event.sequence for event in said) + 1
    roots: list[Event] = [
        CutOff(
            **{name: getattr(begun, name) for name in Event.__struct_fields__}
            | {"sequence": number, "end_ns": at_ns, "span_id": f"{0xDEAD << 32 | number:016x}"},
            outcome=CUT_OFF,
        )
        for number, begun in enumerate(open_.values(), sequence)
    ]
    origin = {name: getattr(said[0], name) for name in ("engine", "recorder", "launch", "capabilities", "sampled_only")}
    number = sequence + len(roots)
    beat = Heartbeat(
        **origin, sequence=number, start_ns=at_ns, end_ns=at_ns, recorder_closed=True, span_id=f"{number:016x}"
    )
    return [*roots, beat]


def early_goodbye(delivery: Delivery, rng: random.Random) -> Delivery:
    """A goodbye is said for a recorder that lives on: its export process has been killed, say. It has a number of its own, or
    the next one, which an event has, too."""
    events = _a_recorder(delivery, rng)
    beats = [event for event in events if isinstance(event, Heartbeat) and not event.recorder_closed]
    if not beats:
        return delivery
    beat, has_own = rng.choice(beats), rng.random() < 0.5
    goodbye = structs.replace(
        beat, sequence=beat.sequence + 1, recorder_closed=True, span_id=f"{rng.getrandbits(64):016x}"
    )

    def numbered(event: Event) -> Event:
        if not has_own or event.recorder != beat.recorder or event.sequence <= beat.sequence:
            return event
        return structs.replace(event, sequence=event.sequence + 1)

    batches = [
        Batch(batch.at_ns, (*map(numbered, batch.events), *([goodbye] if beat in batch.events else [])))
        for batch in delivery.batches
    ]
    return replace(delivery, batches=tuple(batches))


DAMAGES: dict[str, Damage] = {
    each.__name__.replace("_", "-"): each
    for each in (
        early_goodbye, sampled_by_flag, sampled_only, clock_off, clock_drifts, clock_jumps, lose_some, lose_one,
        lose_batches, lose_first, lose_last, lose_stretch, lose_kind, lose_end_of_request, no_goodbye, killed, last_words,
        repeat_some, mix_within, mix_between, mix_all, late_start, restart,
    )
}  # fmt: skip
"""By name, in the order in which they happen: what a recorder does comes before what happens on the way."""


def damaged(delivery: Delivery, names: Iterable[str], seed: object) -> Delivery:
    """A delivery with these damages, in the order in which they happen."""
    chosen = set(names)
    for name, damage in DAMAGES.items():
        if name in chosen:
            made = damage(delivery, random.Random(f"{seed}/{name}"))
            delivery = replace(made, damages=(*delivery.damages, name))
    return delivery


def mixture(seed: object) -> list[str]:
    """Some damages, by seed."""
    rng = random.Random(f"mixture/{seed}")
    return rng.sample(list(DAMAGES), k=rng.choice([1, 1, 1, 2, 2, 3, 4, 6]))


def by_recorder(delivery: Delivery) -> dict[str, list[Event]]:
    """The events by recorder, in the order of their numbers."""
    found: defaultdict[str, list[Event]] = defaultdict(list)
    for event in delivery.events:
        found[event.recorder].append(event)
    return {recorder: sorted(events, key=lambda e: e.sequence) for recorder, events in sorted(found.items())}


def _changed(delivery: Delivery, change: Callable[[Event], Event | None]) -> Delivery:
    """The delivery with each event changed, or lost."""
    batches = [
        Batch(batch.at_ns, tuple(made for event in batch.events if (made := change(event)) is not None))
        for batch in delivery.batches
    ]
    return replace(delivery, batches=tuple(batch for batch in batches if batch.events))


def _without(delivery: Delivery, gone: set[int]) -> Delivery:
    return _changed(delivery, lambda event: None if id(event) in gone else event)


def _left_out(delivery: Delivery, rng: random.Random) -> set[str]:
    """Requests that are not sampled: any share of them, or, as a caller decides, those of some time."""
    requests = list(dict.fromkeys(event.request for event in delivery.events if event.request is not None))
    if rng.random() < 0.5:
        share = rng.choice([0.01, 0.1, 0.5, 0.9])
        return {request for request in requests if rng.random() >= share}
    first = rng.randrange(len(requests) + 1)
    return set(requests[first : first + rng.randrange(1, len(requests) + 2)])


def _with_clock(delivery: Delivery, rng: random.Random, clock: Callable[[int, int], int], *, chance: float) -> Delivery:
    """The delivery with times from wrong clocks, of one recorder or of several."""
    recorders = by_recorder(delivery)
    wrong = {recorder for recorder in recorders if rng.random() < chance} or set(recorders)
    first_ns = {recorder: min(event.end_ns for event in events) for recorder, events in recorders.items()}

    def reported(event: Event) -> Event:
        if event.recorder not in wrong:
            return event
        first = first_ns[event.recorder]
        return structs.replace(event, start_ns=clock(event.start_ns, first), end_ns=clock(event.end_ns, first))

    return _changed(delivery, reported)


def _off(rng: random.Random) -> int:
    return rng.choice([-1, 1]) * rng.choice([rng.randrange(1, 20 * S), rng.randrange(1, HOUR_NS), HOUR_NS])


def _a_moment(delivery: Delivery, rng: random.Random) -> int:
    """Any moment of the delivery, but more often one at which much arrives."""
    first_ns, last_ns = delivery.span_ns()
    if delivery.batches and rng.random() < 0.7:
        return rng.choice(delivery.batches).at_ns
    return rng.randrange(first_ns, last_ns + 1)


def _a_recorder(delivery: Delivery, rng: random.Random) -> list[Event]:
    """The events of a recorder, in the order of their numbers."""
    return rng.choice(list(by_recorder(delivery).values()) or [[]])


def _few(rng: random.Random, most: int) -> int:
    return min(most, rng.choice([1, 1, 2, 5, 20, 100, most // 2]))


def _part(batch: Batch, rng: random.Random) -> tuple[Event, ...]:
    return tuple(rng.sample(batch.events, k=rng.randrange(1, len(batch.events) + 1)))
