"""Two requests side by side: which was slower and why, by phase; and what else differs, the most important first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import account
from kvtrail.dashboard.content.request.phases import BESIDE, Stretch, times
from kvtrail.dashboard.content.requests import status
from kvtrail.dashboard.content.text import percent
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import name
from kvtrail.tracer.model.causes import REUSED, Cause
from kvtrail.tracer.model.words import NOTHING, count, duration, run, size, some

LATER = "'ask me later'"
LEAST_SHARE = 0.02
"""A phase that differs by a smaller share of the longer request has no row."""
LEAST_MS = 0.5
LEAST_REST = 0.2
"""A smaller share of a difference that remains unexplained is not named: rates are means."""
FEW_CAUSES = 2
"""Causes of computed tokens that are named."""
_ORDER = ("queued", "lookup", "waiting for remote KV", "prefill", "decode", "running", "preempted", "failed")
"""The phases in the order of a request's life."""
_Numbered = tuple[int, Row]
"""A step with its number on its request's page."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its timeline, its phases, and how many tokens a second its engine prefills; None if not measured."""

    timeline: Row
    parts: Sequence[Stretch]
    rate: float | None = None

    @property
    def request(self) -> Row:
        """Its account."""
        request: Row = self.timeline["request"]
        return request

    def steps(self, name: str) -> list[_Numbered]:
        """Its steps of a kind, with their numbers."""
        return [(n, step) for n, step in enumerate(self.timeline["steps"], 1) if step["name"] == name]


@dataclass(frozen=True, slots=True)
class Aspect:
    """An aspect of one side: the value to compare, its text, and the step that shows it."""

    compared: Any
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """An aspect that differs: its name and both sides."""

    name: str
    a: Aspect
    b: Aspect


def differences(a: Side, b: Side) -> list[Difference]:
    """What differs, the most important first: outcomes, findings, the connector's answers and the guard's refusals; lengths
    come last. `phase_differences` has the differences in time."""
    found = (Difference(aspect, of(a), of(b)) for aspect, of in _ASPECTS.items())
    return [each for each in found if each.a.compared != each.b.compared]


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


def _outcome(side: Side) -> Aspect:
    outcome, error = palette.label(status(side.request)), side.request["error"]
    return Aspect(outcome, f"{outcome}: {error}" if error else outcome)


def _rules(side: Side) -> Aspect:
    rules = sorted({finding["rule"] for finding in side.timeline["findings"]})
    return Aspect(rules, ", ".join(rules) or "none")


def _answers(side: Side) -> Aspect:
    """The connector's answers, by epoch: the last one before the request was allocated blocks."""
    answers: dict[int, tuple[int, Row]] = {}
    for number, step in side.steps(Kind.LOOKUP):
        answers[step["epoch"]] = (number, step["numbers"])
    texts = [
        f"{_answer(numbers)} of {some(numbers['total'], 'token')}" + (f" {run(epoch)}" if epoch else "")
        for epoch, (_, numbers) in answers.items()
    ]
    compared = [numbers.get("returned") for _, numbers in answers.values()]
    return Aspect(compared, "; ".join(texts) or NOTHING, next((number for number, _ in answers.values()), None))


def _answer(numbers: Row) -> str:
    return LATER if numbers.get("returned") is None else count(numbers["returned"])


def _refusals(side: Side) -> Aspect:
    refused = [number for number, step in side.steps(Kind.LOOKUP) if step["numbers"].get("refused") is not None]
    text = f"{some(len(refused), 'answer')} refused by the guard" if refused else "none"
    return Aspect(len(refused), text, refused[0] if refused else None)


def _sources(side: Side) -> Aspect:
    first = next(iter(account.admissions(side.timeline)), None)
    if first is None:
        return Aspect(None, NOTHING)
    return Aspect(first.parts[:2], account.sum_line(first), first.step)


def _length(side: Side) -> Aspect:
    return Aspect(side.request["prompt"], some(side.request["prompt"] or 0, "token"))


_ASPECTS: dict[str, Callable[[Side], Aspect]] = {
    "Outcome": _outcome,
    "Findings": _rules,
    "The connector's answers": _answers,
    "Refused answers": _refusals,
    "Where the prompt came from": _sources,
    "Prompt's length": _length,
}
"""The compared aspects, the most important first."""


@dataclass(frozen=True, slots=True)
class PhaseDifference:
    """A phase in which two requests spent a different time, in milliseconds, and why; empty if nothing recorded shows it."""

    phase: str
    a_ms: float
    b_ms: float
    why: str

    @property
    def longer_ms(self) -> float:
        """How much longer A was in it."""
        return self.a_ms - self.b_ms


def phase_differences(a: Side, b: Side) -> list[PhaseDifference]:
    """The phases in which the two differ, the largest difference first."""
    spent_a, spent_b = (_spent(each) for each in (a, b))
    least = max(LEAST_MS, LEAST_SHARE * max(sum(spent_a.values()), sum(spent_b.values())))
    found = []
    for phase in _ORDER:
        ours, theirs = spent_a.get(phase, 0.0), spent_b.get(phase, 0.0)
        if abs(ours - theirs) >= least:
            why = _WHY[phase](a, b) if phase in _WHY else ""
            found.append(PhaseDifference(phase, ours, theirs, why))
    return sorted(found, key=lambda each: -abs(each.longer_ms))


def slower_summary(a: Side, b: Side) -> str:
    """Which request was slower, by how much, and in which phase mostly, in a sentence; empty if neither is."""
    whole_a, whole_b = (sum(_spent(each).values()) for each in (a, b))
    found = phase_differences(a, b)
    if not found or not (whole_a and whole_b):
        return ""
    slower, faster = ("A", "B") if whole_a >= whole_b else ("B", "A")
    longer = abs(whole_a - whole_b)
    both = f"{_ms(max(whole_a, whole_b))} against {_ms(min(whole_a, whole_b))}"
    ours = [each for each in found if (each.longer_ms > 0) == (slower == "A")]
    if not ours or longer < LEAST_MS:
        return f"**Both took about as long**, {both}, but not in the same phases."
    most = ours[0]
    less = abs(most.longer_ms)
    more = f" {most.why[0].upper()}{most.why[1:]}." if most.why else ""
    of = f"{percent(less / longer)} of that is" if less <= longer else f"It was {_ms(less)} longer in"
    against = ", ".join(f"{_ms(abs(each.longer_ms))} {each.phase}" for each in found if each not in ours)
    other = f" The other way went {against}." if against else ""
    return f"**{slower} took {_ms(longer)} longer than {faster}**: {both}. {of} {most.phase}.{more}{other}"


def slower_rows(a: Side, b: Side) -> list[Row]:
    """The phases in which the two differ, as rows: by how much they were longer in the request that was slower."""
    spent_a, spent_b = (sum(_spent(each).values()) for each in (a, b))
    slower, sign = ("A", 1) if spent_a >= spent_b else ("B", -1)
    return [
        {
            "Phase": each.phase,
            "A": _ms(each.a_ms) if each.a_ms else "none",
            "B": _ms(each.b_ms) if each.b_ms else "none",
            f"{slower} longer by": f"{'-' if sign * each.longer_ms < 0 else '+'}{_ms(abs(each.longer_ms))}",
            "Why": each.why or "no recorded event shows why",
        }
        for each in phase_differences(a, b)
    ]


def _spent(side: Side) -> dict[str, float]:
    return {phase: ms for phase, ms in times(side.parts).items() if phase not in BESIDE}


def _queued(a: Side, b: Side) -> str:
    """The scheduler looks a request up again in each step in which it has no blocks for it."""
    asked = [_lookups(each) for each in (a, b)]
    if asked[0] == asked[1]:
        return ""
    return f"A was looked up {_times(asked[0])} before it was given blocks, B {_times(asked[1])}"


def _lookups(side: Side) -> int:
    """The answered lookups of the first epoch, by one connector."""
    return max(_of_first_epoch(side, is_answered=True).values(), default=0)


def _lookup(a: Side, b: Side) -> str:
    later = [max(_of_first_epoch(each, is_answered=False).values(), default=0) for each in (a, b)]
    return _both(f"was answered {LATER}", *map(_times, later)) if later[0] != later[1] else ""


def _of_first_epoch(side: Side, *, is_answered: bool) -> Counter[str]:
    """The lookups of the first epoch with an answer, or with 'ask me later', by connector."""
    return Counter(
        str(step["numbers"].get("connector", ""))
        for _, step in side.steps(Kind.LOOKUP)
        if not step["epoch"] and (step["numbers"].get("returned") is not None) is is_answered
    )


def _load(a: Side, b: Side) -> str:
    return _both("waited for a load of", *(_loaded(each) for each in (a, b)))


def _loaded(side: Side) -> str:
    asked = sum(step["numbers"].get("allocated") or 0 for _, step in side.steps(Kind.ALLOC))
    moved = sum(step["numbers"].get("bytes") or 0 for _, step in side.steps(Kind.LOAD))
    if not asked:
        return "nothing"
    return some(asked, "token") + (f", {size(moved)}" if moved else "")


def _prefill(a: Side, b: Side) -> str:
    """What more was computed; what that costs at the rate of the engine that took longer, and how much of the difference that
    leaves unexplained."""
    ours, theirs = (_computed(each) for each in (a, b))
    if ours is None or theirs is None:
        return ""
    spent = [_spent(each).get("prefill", 0.0) for each in (a, b)]
    longer_ms, slower = abs(spent[0] - spent[1]), a if spent[0] >= spent[1] else b
    whole = [some(sum(each.values()), "token") for each in (ours, theirs)]
    if whole[0] == whole[1]:
        return f"both computed {whole[0]}, so that explains nothing of {_ms(longer_ms)}"
    is_as_expected = (ours.total() > theirs.total()) == (slower is a)
    more = ours - theirs if ours.total() > theirs.total() else theirs - ours
    reasons = [f"{count(number)} {_of_cause(cause)}" for cause, number in more.most_common(FEW_CAUSES)]
    said = f"{_both('computed', *whole)}; of the difference, {' and '.join(reasons)}"
    if not slower.rate or not longer_ms:
        return said
    if not is_as_expected:
        return f"{said}: fewer tokens took longer, so that explains nothing of {_ms(longer_ms)}"
    cost_ms = abs(ours.total() - theirs.total()) / slower.rate * 1000
    rate = f"at the {count(round(slower.rate))} tokens/s of its engine that costs {_ms(cost_ms)}"
    left_ms = longer_ms - cost_ms
    rest = f", and {_ms(left_ms)} remain unexplained" if left_ms > LEAST_REST * longer_ms else ""
    return f"{said}; {rate}{rest}"


def _of_cause(cause: str) -> str:
    return "of unknown cause" if cause == Cause.UNKNOWN else name(cause)


def _computed(side: Side) -> Counter[str] | None:
    """The computed tokens of all admissions by cause; None if they are not known."""
    causes = side.request.get("causes") or ()
    if not causes:
        return None
    found: Counter[str] = Counter()
    for admission in causes:
        for part in admission["parts"]:
            if part["cause"] not in REUSED:
                found[part["cause"]] += part["tokens"]
    return found


def _decode(a: Side, b: Side) -> str:
    made = [max(0, (each.request["total"] or 0) - (each.request["prompt"] or 0)) for each in (a, b)]
    return _both("generated", *(some(number, "token") for number in made)) if made[0] != made[1] else ""


def _running(a: Side, b: Side) -> str:
    return "; ".join(filter(None, (_prefill(a, b), _decode(a, b))))


def _preempted(a: Side, b: Side) -> str:
    epochs = [each.request["epoch"] for each in (a, b)]
    again = [each.request["recomputed"] for each in (a, b)]
    both = _both("was preempted", *map(_times, epochs))
    return f"{both}; {_both('recomputed', *(some(number, 'token') for number in again))}" if any(again) else both


def _failed(a: Side, b: Side) -> str:
    """After a call that raised nothing is known of a request until its end."""
    which = [letter for letter, each in (("A", a), ("B", b)) if each.request.get("error")]
    return f"a call for {' and one for '.join(which)} raised" if which else ""


_WHY: dict[str, Callable[[Side, Side], str]] = {
    "queued": _queued,
    "lookup": _lookup,
    "waiting for remote KV": _load,
    "prefill": _prefill,
    "decode": _decode,
    "running": _running,
    "preempted": _preempted,
    "failed": _failed,
}
"""What the events say of a difference in each phase."""


def _both(what: str, a: str, b: str) -> str:
    return f"A {what} {a}, B {b}"


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{count(number)} times")


def _ms(ms: float) -> str:
    return duration(round(ms * 1e6))
