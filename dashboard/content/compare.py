"""Two requests side by side: what differs between them, ranked by what it means, and their steps beside each other.

Steps are compared by what vLLM and the connector said about tokens; block ids, keys and times differ anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import tokens
from kvtrail.dashboard.content.phases import Stretch, times
from kvtrail.dashboard.content.request import step_text
from kvtrail.dashboard.content.requests import status
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.words import NOTHING, count, duration, kind, some

LATER = "'ask me later'"
_OWN = {
    "blocks_ids", "chunk_keys", "chunk_key", "transfer_id", "block_hashes", "scheduler_step", "blocks_free", "bytes",
    "request_priority", "limit",
}  # fmt: skip
"""Numbers that differ between any two requests."""
_WAITS = {
    "waiting for remote KV": "Waited for a load", "lookup": "Waited for an answer", "queued": "Queued",
    "preempted": "Preempted for",
}  # fmt: skip
"""The phases in which a request gets no further, and how the time in them is called."""
_LEAST_MS = 1.0
"""Shorter waits are no difference that anybody notices."""
_MUCH = 2.0
"""Times differ if one is so many times the other."""
_Numbered = tuple[int, Row]
"""A step with its number on its request's page."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its timeline and its phases."""

    timeline: Row
    parts: Sequence[Stretch]

    @property
    def request(self) -> Row:
        """Its account."""
        account: Row = self.timeline["request"]
        return account

    def steps(self, name: str) -> list[_Numbered]:
        """Its steps of a kind, with their numbers."""
        return [(n, step) for n, step in enumerate(self.timeline["steps"], 1) if step["name"] == name]


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of one side: what is compared, in words, and the step at which it shows."""

    compared: Any
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs, and why one should care."""

    name: str
    a: Told
    b: Told


def differences(a: Side, b: Side) -> list[Difference]:
    """What differs, the weightiest first: what became of them, what the connector answered and the guard refused, how long
    they waited, what was computed again; lengths come last."""
    before, after = (
        [Difference(name, tell(a), tell(b)) for name, tell in told.items()] for told in (_BEFORE_WAITS, _AFTER_WAITS)
    )
    waits = [Difference(name, _spent(a, phase), _spent(b, phase)) for phase, name in _WAITS.items()]
    return [
        *(each for each in before if each.a.compared != each.b.compared),
        *(each for each in waits if _is_noticed(each.a.compared, each.b.compared)),
        *(each for each in after if each.a.compared != each.b.compared),
    ]


def step_rows(a: Row, b: Row) -> list[Row]:
    """Both histories, step beside step, from each preemption on anew; the first column says what differs."""
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
    """Requests to compare with, as rows: what tells each from `to`."""
    return [
        {
            "Request": offer["request"],
            "Started": _apart(offer["started_ns"] - to["started_ns"]),
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


def _apart(ns: int) -> str:
    return "at the same time" if not ns else f"{duration(abs(ns))} {'later' if ns > 0 else 'earlier'}"


def _became(side: Side) -> Told:
    became, error = status(side.request), side.request["error"]
    return Told(became, f"{became}: {error}" if error else became)


def _contradictions(side: Side) -> Told:
    rules = sorted({finding["rule"] for finding in side.timeline["findings"]})
    return Told(rules, ", ".join(rules) or "none")


def _answers(side: Side) -> Told:
    """What the connector promised, at each admission: its last answer before the request was given blocks."""
    answers: dict[int, tuple[int, Row]] = {}
    for number, step in side.steps(Kind.LOOKUP):
        answers[step["epoch"]] = (number, step["numbers"])
    texts = [
        f"{_answer(numbers)} of {some(numbers['total'], 'token')}" + (f" {tokens.run_name(epoch)}" if epoch else "")
        for epoch, (_, numbers) in answers.items()
    ]
    compared = [numbers.get("returned") for _, numbers in answers.values()]
    return Told(compared, "; ".join(texts) or NOTHING, next((number for number, _ in answers.values()), None))


def _answer(numbers: Row) -> str:
    return LATER if numbers.get("returned") is None else count(numbers["returned"])


def _refusals(side: Side) -> Told:
    refused = [number for number, step in side.steps(Kind.LOOKUP) if step["numbers"].get("refused") is not None]
    text = f"{some(len(refused), 'answer')} refused by the guard" if refused else "none"
    return Told(len(refused), text, refused[0] if refused else None)


def _postponed(side: Side) -> Told:
    later = [number for number, step in side.steps(Kind.LOOKUP) if step["numbers"].get("returned") is None]
    return Told(len(later), some(len(later), "answer"), later[0] if later else None)


def _spent(side: Side, phase: str) -> Told:
    ms = times(side.parts).get(phase, 0.0)
    return Told(ms, duration(round(ms * 1e6)) if ms else "none")


def _is_noticed(a_ms: float, b_ms: float) -> bool:
    low, high = sorted((a_ms, b_ms))
    return high >= _LEAST_MS and high >= _MUCH * low


def _recomputed(side: Side) -> Told:
    return Told(side.request["recomputed"], some(side.request["recomputed"], "token"))


def _preemptions(side: Side) -> Told:
    steps = side.steps(Kind.PREEMPT)
    return Told(side.request["epoch"], count(side.request["epoch"]), steps[0][0] if steps else None)


def _sources(side: Side) -> Told:
    first = next(iter(tokens.admissions(side.timeline)), None)
    if first is None:
        return Told(None, NOTHING)
    return Told(first.parts[:2], tokens.sum_line(first), first.step)


def _moved(name: str, kind_: Kind) -> Callable[[Side], Told]:
    def tell(side: Side) -> Told:
        steps = side.steps(kind_)
        return Told(side.request[name], some(side.request[name], "token"), steps[0][0] if steps else None)

    return tell


def _length(side: Side) -> Told:
    return Told(side.request["prompt"], some(side.request["prompt"] or 0, "token"))


_BEFORE_WAITS: dict[str, Callable[[Side], Told]] = {
    "What became of it": _became,
    "Findings": _contradictions,
    "The connector's answers": _answers,
    "Refused answers": _refusals,
    f"Answers {LATER}": _postponed,
}
_AFTER_WAITS: dict[str, Callable[[Side], Told]] = {
    "Recomputed after preemptions": _recomputed,
    "Preemptions": _preemptions,
    "Loaded": _moved("loaded", Kind.LOAD),
    "Stored": _moved("stored", Kind.STORE),
    "Where the prompt came from": _sources,
    "Prompt's length": _length,
}
"""What is told of each side, before and after how long it waited, the weightiest first."""


def _pairs(a: Row, b: Row) -> list[tuple[_Numbered | None, _Numbered | None]]:
    """The steps of both requests side by side, without other services'. What follows a preemption is beside what follows the
    same preemption of the other."""
    ours, theirs = _runs(a), _runs(b)
    epochs = sorted({*ours, *theirs})
    return [pair for epoch in epochs for pair in zip_longest(ours.get(epoch, []), theirs.get(epoch, []))]


def _runs(timeline: Row) -> dict[int, list[_Numbered]]:
    """The steps by how often the request had been preempted."""
    runs: dict[int, list[_Numbered]] = {}
    for number, step in enumerate(timeline["steps"], 1):
        if not step["foreign"]:
            runs.setdefault(step["epoch"] or 0, []).append((number, step))
    return runs


def _difference(one: _Numbered | None, other: _Numbered | None) -> str:
    """What differs between two steps, in a word; empty if they say the same."""
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
"""Numbers whose difference means more than that of others."""


def _call(step: Row) -> Sequence[Any]:
    return step["name"], step["rank"], bool(step["error"])


def _numbers(step: Row) -> list[tuple[str, Any]]:
    return sorted(((name, value) for name, value in step["numbers"].items() if name not in _OWN), key=str)


def _text(step: Row) -> str:
    return f"{kind(step['name'])}: {step_text(step)}"
