"""Two requests side by side: which took longer and in which phases, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import account
from kvtrail.dashboard.content.request.phases import BESIDE, Stretch, times
from kvtrail.dashboard.content.requests import status
from kvtrail.dashboard.content.text import milliseconds
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import name
from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.words import NOTHING, count, duration, run, size, some

LATER = "'ask me later'"
LEAST_SHARE, LEAST_MS = 0.02, 0.5
"""A phase that differs by less, or by a smaller share of the longer request, has no row."""
FEW_CAUSES = 3
"""Maximum number of named causes of computed tokens."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two requests: its timeline and its phases."""

    timeline: Row
    parts: Sequence[Stretch]

    @property
    def request(self) -> Row:
        """Its account."""
        request: Row = self.timeline["request"]
        return request

    def numbers(self, name: str, *, epoch: int | None = None) -> list[Row]:
        """The numbers of its steps of a kind, optionally of one epoch."""
        return [
            step["numbers"] | {"epoch": step["epoch"]}
            for step in self.timeline["steps"]
            if step["name"] == name and epoch in (None, step["epoch"] or 0)
        ]

    def spent(self) -> dict[str, float]:
        """Milliseconds in each phase."""
        return {phase: ms for phase, ms in times(self.parts).items() if phase not in BESIDE}


def offer_rows(offers: Iterable[Row], to: Row) -> list[Row]:
    """Requests to compare with, as rows; times are relative to the request `to`."""
    return [
        {
            "Request": offer["request"],
            "When": _time_between(offer["started_ns"] - to["started_ns"]),
            "Duration": _seconds(offer, "duration"),
            "First token": _seconds(offer, "first_token"),
            "Prompt": offer["prompt"],
            "Status": [status(offer)],
            "Findings": offer["findings"],
            "Loaded": offer["loaded"],
            "Recomputed": offer["recomputed"],
            "Engine": offer["engine_name"],
        }
        for offer in offers
    ]


def _seconds(offer: Row, of: str) -> float | None:
    ns = offer.get("times", {}).get(of)
    return None if ns is None else ns / 1e9


def _time_between(ns: int) -> str:
    return "at the same time" if not ns else f"{duration(abs(ns))} {'later' if ns > 0 else 'earlier'}"


def longer_ms(a: Side, b: Side) -> dict[str, float]:
    """By phase, how many milliseconds longer A was in it; the largest difference first, without small ones."""
    ours, theirs = a.spent(), b.spent()
    least = max(LEAST_MS, LEAST_SHARE * max(sum(ours.values()), sum(theirs.values())))
    longer = {phase: ours.get(phase, 0.0) - theirs.get(phase, 0.0) for phase in ours | theirs}
    return {phase: ms for phase, ms in sorted(longer.items(), key=lambda each: -abs(each[1])) if abs(ms) >= least}


def summary(a: Side, b: Side) -> str:
    """Which request was slower, by how much, and in which phase mostly, in a sentence; empty if neither was."""
    whole_a, whole_b = (sum(each.spent().values()) for each in (a, b))
    found = longer_ms(a, b)
    if not found or not (whole_a and whole_b):
        return ""
    slower, faster, sign = ("A", "B", 1) if whole_a >= whole_b else ("B", "A", -1)
    both = f"{milliseconds(max(whole_a, whole_b))} against {milliseconds(min(whole_a, whole_b))}"
    ours = {phase: ms * sign for phase, ms in found.items() if ms * sign > 0}
    if not ours or abs(whole_a - whole_b) < LEAST_MS:
        return f"**Both took about as long**, {both}, but not in the same phases."
    most, longer = next(iter(ours.items()))
    gap = milliseconds(abs(whole_a - whole_b))
    return f"**{slower} took {gap} longer than {faster}**: {both}. It was {milliseconds(longer)} longer in {most}."


def rows(a: Side, b: Side) -> list[Row]:
    """The differences, one row each: the phases, the largest difference first, with related events; then outcomes, findings
    and answers."""
    found = [{"": phase, "A": _in_phase(a, phase), "B": _in_phase(b, phase)} for phase in longer_ms(a, b)]
    aspects = [{"": aspect, "A": of(a), "B": of(b)} for aspect, of in _ASPECTS.items()]
    return found + [each for each in aspects if each["A"] != each["B"]]


def _in_phase(side: Side, phase: str) -> str:
    """The time in a phase, and related events."""
    ms = side.spent().get(phase)
    if not ms:
        return "none"
    said = _SAYS[phase](side) if phase in _SAYS else ""
    return f"{milliseconds(ms)}: {said}" if said else milliseconds(ms)


def _lookups(side: Side) -> str:
    """The number of lookups: the scheduler repeats the lookup in each step in which the request gets no blocks."""
    found = Counter(each.get("connector") for each in side.numbers(Kind.LOOKUP, epoch=0) if _is_answered(each))
    return f"looked up {_times(max(found.values(), default=0))}"


def _later(side: Side) -> str:
    found = Counter(each.get("connector") for each in side.numbers(Kind.LOOKUP, epoch=0) if not _is_answered(each))
    return f"{_times(max(found.values(), default=0))} answered {LATER}"


def _is_answered(lookup: Row) -> bool:
    return lookup.get("returned") is not None


def _loaded(side: Side) -> str:
    asked, moved = (
        sum(each.get(number) or 0 for each in side.numbers(kind))
        for kind, number in ((Kind.ALLOC, "allocated"), (Kind.LOAD, "bytes"))
    )
    return f"loaded {some(asked, 'token')}{f', {size(moved)}' if moved else ''}"


def _computed(side: Side) -> str:
    """The computed tokens of all admissions, by cause; empty if they are not known."""
    if not (admissions := side.request.get("causes")):
        return ""
    found: Counter[str] = Counter()
    for part in (part for admission in admissions for part in admission["parts"]):
        if part["cause"] not in REUSED:
            found[part["cause"]] += part["tokens"]
    causes = ", ".join(f"{count(tokens)} {name(cause)}" for cause, tokens in found.most_common(FEW_CAUSES))
    return f"computed {some(found.total(), 'token')}" + (f" ({causes})" if causes else "")


def _made(side: Side) -> str:
    return f"generated {some(max(0, (side.request['total'] or 0) - (side.request['prompt'] or 0)), 'token')}"


def _preempted(side: Side) -> str:
    again = side.request["recomputed"]
    return f"preempted {_times(side.request['epoch'])}" + (f", {some(again, 'token')} recomputed" if again else "")


_SAYS: dict[str, Callable[[Side], str]] = {
    "queued": _lookups,
    "lookup": _later,
    "waiting for remote KV": _loaded,
    "prefill": _computed,
    "decode": _made,
    "running": lambda side: ", ".join(filter(None, (_computed(side), _made(side)))),
    "preempted": _preempted,
    "failed": lambda side: "a call for it raised" if side.request.get("error") else "",
}
"""The functions that describe events related to the time in each phase."""


def _outcome(side: Side) -> str:
    outcome, error = palette.label(status(side.request)), side.request["error"]
    return f"{outcome}: {error}" if error else outcome


def _rules(side: Side) -> str:
    return ", ".join(sorted({finding["rule"] for finding in side.timeline["findings"]})) or "none"


def _answers(side: Side) -> str:
    """The connector's answers, by epoch: the last one before the request was allocated blocks."""
    last = {each["epoch"]: each for each in side.numbers(Kind.LOOKUP)}
    return "; ".join(
        f"{count(each['returned']) if _is_answered(each) else LATER} of {some(each['total'], 'token')}"
        + (f" {run(epoch)}" if epoch else "")
        for epoch, each in last.items()
    )


def _refusals(side: Side) -> str:
    refused = sum(each.get("refused") is not None for each in side.numbers(Kind.LOOKUP))
    return f"{some(refused, 'answer')} refused by the guard" if refused else "none"


def _sources(side: Side) -> str:
    return next((account.sum_line(each) for each in account.admissions(side.timeline)), NOTHING)


_ASPECTS: dict[str, Callable[[Side], str]] = {
    "Outcome": _outcome,
    "Findings": _rules,
    "The connector's answers": _answers,
    "Refused answers": _refusals,
    "Where the prompt came from": _sources,
}
"""The compared aspects, the most important first."""


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{count(number)} times")
