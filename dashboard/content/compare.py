"""Two requests side by side: where their histories first differ.

Steps are compared by what vLLM and the connector said about tokens; block ids, keys and times differ anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import step_text
from kvtrail.tracer.model.words import kind

_OWN = {
    "blocks_ids", "chunk_keys", "chunk_key", "transfer_id", "block_hashes", "scheduler_step", "blocks_free", "bytes",
    "request_priority", "limit",
}  # fmt: skip
"""Numbers that differ between any two requests."""
_Numbered = tuple[int | None, str | None]
"""A step's number on its request's page, and its text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which A and B differ: its number in each of them, None where one has ended, and the end of the sentence
    that begins with `They first differ:`."""

    steps: tuple[int | None, int | None]
    sentence: str


def first_difference(a: Row, b: Row) -> Difference | None:
    """Where two timelines first say something else; None if they say the same to the end."""
    return _first(a, b, _numbers)


def first_other_call(a: Row, b: Row) -> Difference | None:
    """Where another call is made, whatever its numbers; None if both make the same calls."""
    return _first(a, b, lambda step: (step["name"], step["epoch"], step["rank"], bool(step["error"])))


def step_rows(a: Row, b: Row) -> list[Row]:
    """Both histories, step beside step; the first column says where they differ."""
    rows: list[Row] = []
    for one, other, differs in _pairs(a, b, _numbers):
        is_first = differs and not any(row[""] for row in rows)
        (a_step, a_text), (b_step, b_text) = one, other
        rows.append(
            {
                "": "first" if is_first else "differs" if differs else "",
                "A step": a_step,
                "A": a_text,
                "B step": b_step,
                "B": b_text,
            }
        )
    return rows


def _first(a: Row, b: Row, compared: Callable[[Row], Any]) -> Difference | None:
    for one, other, differs in _pairs(a, b, compared):
        if differs:
            parts = (
                f"{letter} has ended" if step is None else f"{letter} at step {step}, {words}"
                for letter, (step, words) in zip("AB", (one, other), strict=True)
            )
            return Difference((one[0], other[0]), "; ".join(parts))
    return None


def _pairs(a: Row, b: Row, compared: Callable[[Row], Any]) -> list[tuple[_Numbered, _Numbered, bool]]:
    """The steps of both requests side by side, without other services'; and whether what is `compared` differs."""
    own = ([(n, s) for n, s in enumerate(timeline["steps"], 1) if not s["foreign"]] for timeline in (a, b))
    return [
        (_numbered(one), _numbered(other), not (one and other) or compared(one[1]) != compared(other[1]))
        for one, other in zip_longest(*own)
    ]


def _numbered(pair: tuple[int, Row] | None) -> _Numbered:
    return (pair[0], f"{kind(pair[1]['name'])}: {step_text(pair[1])}") if pair else (None, None)


def _numbers(step: Row) -> tuple[Any, ...]:
    numbers = {name: value for name, value in step["numbers"].items() if name not in _OWN}
    return step["name"], step["epoch"], step["rank"], step["error"], sorted(numbers.items(), key=str)
