"""A request as a lane of the live view, and its segments in a time window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.model.conditions import Condition


class Lane(Struct, frozen=True, kw_only=True, gc=False):
    """A request and its phases.

    Attributes:
        request, engine, external, connector, status, verdict, complete: as in its account.
        findings: number of its findings.
        started_ns, last_ns, ended_ns: Unix nanoseconds; `ended_ns` is None while it is open.
        changes: alternately a phase and its beginning, in microseconds after the start.
        transfers: triples of a phase, its beginning and its end, in microseconds after the start.
    """

    request: str
    engine: str
    external: str
    connector: str
    status: str
    verdict: str
    findings: int
    complete: bool
    started_ns: int
    last_ns: int
    ended_ns: int | None
    changes: tuple[int, ...]
    transfers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of the live view: the lanes that overlap the time and match the filters that are not empty.

    Attributes:
        from_ns, to_ns: Unix nanoseconds.
        limit: maximum number of lanes.
        status: an exact value.
        engines: any of these engines; None means any.
        where: conditions that all must hold; a request with unknown measures meets none.
        search: a part of the request's id or external id.
    """

    from_ns: int
    to_ns: int
    limit: int = 1000
    engines: Sequence[str] | None = None
    where: Sequence[Condition] = ()
    status: str = ""
    search: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The stored lanes of a window.

    Attributes:
        lanes: the lanes in the order of their starts.
        known: requests in the window; an estimate if this is a sample.
        is_sample: whether there are more than the limit. Requests with findings, and failed ones, then get up to half of the
            limit; the others are a fair sample.
        has_all_findings: whether every request with findings is included.
        is_whole: False if the search was stopped because it took too long.
    """

    lanes: Sequence[Lane]
    known: int
    is_sample: bool
    has_all_findings: bool
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a lane in one phase; in microseconds after the window's beginning, possibly negative."""

    phase: Phase
    begin_us: int
    end_us: int


def lane_of(account: Account, *, verdict: str, findings: int) -> Lane:
    """The lane of an account in its current state."""
    begun_ns = account.started_ns
    changes: list[int] = []
    for at_ns, phase in account.phases.changes():
        changes += (int(phase), (at_ns - begun_ns) // 1000)
    transfers: list[int] = []
    for begin_ns, end_ns, phase in account.phases.transfers():
        transfers += (int(phase), (begin_ns - begun_ns) // 1000, (end_ns - begun_ns) // 1000)
    return Lane(
        request=account.request,
        engine=account.engine,
        external=account.external,
        connector=account.connector,
        status=account.status,
        verdict=verdict,
        findings=findings,
        complete=account.complete,
        started_ns=begun_ns,
        last_ns=max(account.last_ns, account.ended_ns or 0),
        ended_ns=account.ended_ns,
        changes=tuple(changes),
        transfers=tuple(transfers),
    )


def segments(lane: Lane, *, window: Window, until_ns: int, finest_us: float) -> list[Segment]:
    """The segments of the lane in the window: the last phase lasts until `until_ns`, and segments shorter than `finest_us`
    are merged with adjacent ones, in the colour of the longest."""
    shift_us = (lane.started_ns - window.from_ns) // 1000
    begins = [lane.changes[n + 1] + shift_us for n in range(0, len(lane.changes), 2)]
    # A request that only workers have recorded has no phases.
    ends = [*begins[1:], (until_ns - window.from_ns) // 1000][: len(begins)]
    phases = [Phase(phase) for phase in lane.changes[::2]]
    spans = [Segment(*each) for each in zip(phases, begins, ends, strict=True) if each[0] is not Phase.DONE]
    moved = [
        Segment(Phase(lane.transfers[n]), lane.transfers[n + 1] + shift_us, lane.transfers[n + 2] + shift_us)
        for n in range(0, len(lane.transfers), 3)
    ]
    width_us = (window.to_ns - window.from_ns) // 1000
    drawn = []
    for track in (spans, moved):
        inside = [s for s in track if s.end_us >= 0 and s.begin_us <= width_us and s.end_us >= s.begin_us]
        drawn += _drawn_together(inside, finest_us)
    return drawn


def _drawn_together(track: Sequence[Segment], finest_us: float) -> list[Segment]:
    drawn: list[Segment] = []
    longest_us = 0
    for segment in track:
        last = drawn[-1] if drawn else None
        length_us = segment.end_us - segment.begin_us
        is_near = last is not None and segment.begin_us - last.end_us < finest_us
        are_both_seen = length_us >= finest_us and last is not None and last.end_us - last.begin_us >= finest_us
        if last is None or not is_near or (are_both_seen and segment.phase is not last.phase):
            drawn.append(segment)
            longest_us = length_us
            continue
        # A long segment absorbs the short ones before it, and begins where they did.
        phase = segment.phase if length_us > longest_us else last.phase
        longest_us = max(longest_us, length_us)
        drawn[-1] = Segment(phase, last.begin_us, max(last.end_us, segment.end_us))
    return drawn
