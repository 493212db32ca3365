"""The phases of one request over time, and the time in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import milliseconds, percent

BESIDE = ("load", "store")
"""Transfers overlap the phases."""
OVER = ("done", "failed")
"""After these phases, nothing is known about a request until its end."""
MOST_NAMED, LEAST = 3, 0.02
"""Maximum number of phases that a sentence names, and the minimum share of each."""
POINTS = 20_000
"""The requested resolution: shorter phases are merged."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a request in one phase, in milliseconds after its arrival."""

    phase: str
    begin: float
    end: float


def question(request: Row, *, now_ns: int) -> dict[str, int | str]:
    """The parameters of `/api/lanes` for one request."""
    end_ns = max(request["last_ns"], request["ended_ns"] or now_ns)
    return {
        "from_ns": request["started_ns"],
        "to_ns": max(end_ns, request["started_ns"] + 1),
        "q": request["request"],
        "engine": request["engine"],
        "points": POINTS,
    }


def stretches(lanes: Row, request: Row) -> list[Stretch]:
    """The phases of the request in an answer of `/api/lanes`, in order of time; empty if the request is not in it."""
    asked = (request["request"], request["engine"])
    found = list(zip(lanes["requests"]["request"], lanes["requests"]["engine"], strict=True))
    if asked not in found:
        return []
    number = found.index(asked)
    columns = (lanes["segments"][name] for name in ("lane", "phase", "begin_us", "end_us"))
    return [
        Stretch(lanes["phases"][phase], begin_us / 1000, end_us / 1000)
        for lane, phase, begin_us, end_us in zip(*columns, strict=True)
        if lane == number
    ]


def known(parts: Sequence[Stretch]) -> list[Stretch]:
    """The phases without transfers, as long as the request's state is known."""
    return [part for part in alone(parts) if part.phase not in OVER]


def alone(parts: Sequence[Stretch]) -> list[Stretch]:
    """The phases without transfers: they do not overlap."""
    return [part for part in parts if part.phase not in BESIDE]


def times(parts: Sequence[Stretch]) -> dict[str, float]:
    """Milliseconds in each phase, in the order of entry; transfers come last."""
    spent: dict[str, float] = {}
    for part in sorted(parts, key=lambda part: (part.phase in BESIDE, part.begin)):
        spent[part.phase] = spent.get(part.phase, 0.0) + part.end - part.begin
    return spent


def time_texts(parts: Sequence[Stretch]) -> dict[str, str]:
    """The time in each phase as text, with its share: 12 ms (3.1 %)."""
    whole = sum(part.end - part.begin for part in known(parts))
    return {
        phase: milliseconds(ms) + ("" if phase in BESIDE or not whole else f" ({percent(ms / whole)})")
        for phase, ms in times(parts).items()
        if phase not in OVER
    }


def sentence(parts: Sequence[Stretch]) -> str:
    """The phases that took most of the time, in a sentence; empty if none is recorded."""
    spent = {phase: ms for phase, ms in times(parts).items() if phase not in (*BESIDE, *OVER)}
    whole = sum(spent.values())
    most = sorted(spent.items(), key=lambda each: -each[1])[:MOST_NAMED]
    said = [
        f"{percent(ms / whole)} {phase} ({milliseconds(ms)})" for phase, ms in most if whole and ms / whole >= LEAST
    ]
    return f"It took {milliseconds(whole)}: {', '.join(said)}." if said else ""
