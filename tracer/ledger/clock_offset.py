"""The clock offset between the two engines of a hand-off. Pure.

The clocks of two engines are never compared directly. But no message arrives before it was sent, so each message between
them bounds the offset of one clock from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvtrail.tracer.events.events import Alloc, Event, Free, Handoff, Lease, Read, Received, Schedule, Sent, Side

_BY_GIVER = "remote_request_id:"
"""Prefix of the keys that only the giving engine can have created, with the parameters that it returned at the request's
end."""


class Ahead(NamedTuple):
    """Minimum and maximum offset of the taking engine's clock from the giving engine's clock, in nanoseconds; None if no
    message bounds it."""

    least_ns: int | None
    most_ns: int | None

    @property
    def likely_ns(self) -> int:
        """The offset for charts: 0 if the messages allow it; else the middle of the bounds, or the only bound."""
        least, most = self.least_ns, self.most_ns
        if (least is None or least <= 0) and (most is None or most >= 0):
            return 0
        if least is None or most is None:
            return least if most is None else most  # type: ignore[return-value]  # one of them is known
        return (least + most) // 2


class Kept(NamedTuple):
    """The time for which the giving engine kept the blocks, by its own clock.

    Attributes:
        from_ns: the end of its request.
        to_ns: when it freed them; None while it keeps them.
        expired: whether the lease expired.
        read_ns: when a reader reported that it had read them; None if none did.
    """

    from_ns: int
    to_ns: int | None
    expired: bool
    read_ns: int | None


def ahead(given: Sequence[Event], taken: Sequence[Event], *, is_only_taker: bool) -> Ahead:
    """The bounds from the messages of a hand-off.

    Args:
        given, taken: the events of the giving request, and of one taking request.
        is_only_taker: whether no other request takes it: then a reader's report is this request's.
    """
    takes = next((each for each in taken if isinstance(each, Handoff) and each.takes), None)
    gives = next((each for each in given if isinstance(each, Handoff) and each.handoff_side == Side.GIVES), None)
    if takes is None or gives is None:
        return Ahead(None, None)
    loaded = next((each for each in taken if isinstance(each, Received) and not each.failed), None)
    least: list[int] = []
    most: list[int] = []
    if any(key.startswith(_BY_GIVER) for key in takes.handoff_keys):
        most.append(
            takes.end_ns - gives.start_ns
        )  # the other request is sent with the parameters that this one returns
    if loaded is not None and (steps := [each.start_ns for each in given if isinstance(each, Schedule)]):
        most.append(loaded.end_ns - max(steps))  # the whole prompt was scheduled before all of it had arrived
    if is_only_taker:
        heard = [each.end_ns for each in given if isinstance(each, Read | Lease)]
        if heard:
            least.append(
                takes.start_ns - min(heard)
            )  # it reports, and extends the lease, after it has received the request
        begun = [each.start_ns for each in taken if isinstance(each, Alloc) and each.allocated]
        ends = [each.end_ns for each in given if isinstance(each, Read | Sent)]
        if loaded is not None and begun and ends and not any(isinstance(each, Free) for each in given):
            least.append(begun[0] - min(ends))  # it reads into allocated blocks, and reports after the read
    bounds = Ahead(max(least, default=None), min(most, default=None))
    if bounds.least_ns is not None and bounds.most_ns is not None and bounds.least_ns > bounds.most_ns:
        return Ahead(None, None)  # a clock was set in the meantime
    return bounds


def kept(given: Iterable[Event]) -> Kept | None:
    """How long the blocks of a request were kept for another engine; None if it gives none."""
    from_ns = to_ns = read_ns = None
    expired = False
    for event in given:
        if isinstance(event, Handoff) and event.handoff_side == Side.GIVES:
            from_ns = event.end_ns
        elif isinstance(event, Read):
            read_ns = read_ns or event.end_ns
        elif isinstance(event, Free | Sent) and to_ns is None:
            to_ns, expired = event.end_ns, isinstance(event, Free) and bool(event.lease_expired)
    return None if from_ns is None else Kept(from_ns, to_ns, expired, read_ns)
