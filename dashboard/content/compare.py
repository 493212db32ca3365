"""Two requests side by side: their differences, the most important first, and their steps.

Steps are compared by their token counts; block ids, keys and times always differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette, tokens
from kvtrail.dashboard.content.phases import Stretch
from kvtrail.dashboard.content.request import step_text
from kvtrail.dashboard.content.requests import status
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.words import NOTHING, count, duration, kind, run, some

LATER = "'ask me later'"
_OWN = {
    "blocks_ids", "chunk_keys", "chunk_key", "transfer_id", "block_hashes", "scheduler_step", "blocks_free", "bytes",
    "request_priority", "limit",
}  # fmt: skip
"""Numbers that differ between any two requests."""
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
        account: Row = self.timeline["request"]
        return account

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
    """What differs, the most important first: outcomes, findings, the connector's answers and the guard's refusals,
    recomputed tokens; lengths come last. `slower` has the differences in time."""
    found = (Difference(aspect, of(a), of(b)) for aspect, of in _ASPECTS.items())
    return [each for each in found if each.a.compared != each.b.compared]


def step_rows(a: Row, b: Row) -> list[Row]:
    """Both histories, step by step, realigned after each preemption; the first column names the difference."""
    return [
        {
            "": _difference(one, other),
            "A step": None if one is None else one[0],
            "A": None if one is None else _text(one[1]),
            "B step": None if other is None else other[0],
            "B": None if other is None else _text(other[1]),
        }
        for one, other in _pairs(a, b)
    ]


def offer_rows(offers: Iterable[Row], to: Row) -> list[Row]:
    """Requests to compare with, as rows; times are relative to the request `to`."""
    return [
        {
            "Request": offer["request"],
            "Started": _time_between(offer["started_ns"] - to["started_ns"]),
            "Duration": _seconds(offer, "duration"),
            "First token": _seconds(offer, "first_token"),
            "Waited": offer["waited_ns"] / 1e9,
            "Prompt": offer["prompt"],
            "Status": [status(offer)],
            "Verdict": [offer["verdict"]],
            "Findings": offer["findings"],
            "Loaded": offer["loaded"],
            "Recomputed": offer["recomputed"],
            "Preemptions": offer["epoch"],
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


def _postponed(side: Side) -> Aspect:
    later = [number for number, step in side.steps(Kind.LOOKUP) if step["numbers"].get("returned") is None]
    return Aspect(len(later), some(len(later), "answer"), later[0] if later else None)


def _recomputed(side: Side) -> Aspect:
    return Aspect(side.request["recomputed"], some(side.request["recomputed"], "token"))


def _preemptions(side: Side) -> Aspect:
    steps = side.steps(Kind.PREEMPT)
    return Aspect(side.request["epoch"], count(side.request["epoch"]), steps[0][0] if steps else None)


def _sources(side: Side) -> Aspect:
    first = next(iter(tokens.admissions(side.timeline)), None)
    if first is None:
        return Aspect(None, NOTHING)
    return Aspect(first.parts[:2], tokens.sum_line(first), first.step)


def _moved(name: str, kind_: Kind) -> Callable[[Side], Aspect]:
    def aspect(side: Side) -> Aspect:
        steps = side.steps(kind_)
        return Aspect(side.request[name], some(side.request[name], "token"), steps[0][0] if steps else None)

    return aspect


def _length(side: Side) -> Aspect:
    return Aspect(side.request["prompt"], some(side.request["prompt"] or 0, "token"))


_ASPECTS: dict[str, Callable[[Side], Aspect]] = {
    "Outcome": _outcome,
    "Findings": _rules,
    "The connector's answers": _answers,
    "Refused answers": _refusals,
    f"Answers {LATER}": _postponed,
    "Recomputed after preemptions": _recomputed,
    "Preemptions": _preemptions,
    "Loaded": _moved("loaded", Kind.LOAD),
    "Stored": _moved("stored", Kind.STORE),
    "Where the prompt came from": _sources,
    "Prompt's length": _length,
}
"""The compared aspects, the most important first."""


def _pairs(a: Row, b: Row) -> list[tuple[_Numbered | None, _Numbered | None]]:
    """The steps of both requests side by side, without other services', aligned by epoch."""
    ours, theirs = _runs(a), _runs(b)
    epochs = sorted({*ours, *theirs})
    return [pair for epoch in epochs for pair in zip_longest(ours.get(epoch, []), theirs.get(epoch, []))]


def _runs(timeline: Row) -> dict[int, list[_Numbered]]:
    """The steps by epoch."""
    runs: dict[int, list[_Numbered]] = {}
    for number, step in enumerate(timeline["steps"], 1):
        if not step["foreign"]:
            runs.setdefault(step["epoch"] or 0, []).append((number, step))
    return runs


def _difference(one: _Numbered | None, other: _Numbered | None) -> str:
    """What differs between two steps, in a word; empty if nothing does."""
    if one is None or other is None:
        return "only A" if other is None else "only B"
    a, b = one[1], other[1]
    if _call(a) != _call(b):
        return "other call"
    for name, word in _WORDS.items():
        if a["numbers"].get(name) != b["numbers"].get(name):
            return word
    return "numbers" if _numbers(a) != _numbers(b) else ""


_WORDS = {"refused": "refused", "returned": "answer", "failed": "failed"}
"""The numbers with a name of their own for their difference."""


def _call(step: Row) -> Sequence[Any]:
    return step["name"], step["rank"], bool(step["error"])


def _numbers(step: Row) -> list[tuple[str, Any]]:
    return sorted(((name, value) for name, value in step["numbers"].items() if name not in _OWN), key=str)


def _text(step: Row) -> str:
    return f"{kind(step['name'])}: {step_text(step)}"
