"""Two requests side by side: their accounts, and where they first differ. Pure.

Steps are compared by what vLLM and the connector said of tokens. Whatever differs between any two requests, such as block
ids, keys and times, is no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.replay import NUMBERS

_OWN = {
    "blocks_ids", "chunk_keys", "chunk_key", "transfer_id", "block_hashes", "scheduler_step", "blocks_free", "bytes",
    "request_priority", "limit",
}  # fmt: skip
"""Numbers that are a request's own."""
_LETTERS = ("A", "B")


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which two requests differ: its number in each of them, and what it says there; None where one has ended."""

    steps: tuple[int | None, int | None]
    says: tuple[str | None, str | None]

    @property
    def sentence(self) -> str:
        """In words, to go on after `They first differ`."""
        parts = (
            f"{letter} has ended" if step is None else f"{letter} at step {step}, {say}"
            for step, say, letter in zip(self.steps, self.says, _LETTERS, strict=True)
        )
        return "; ".join(parts)


def first_difference(a: Row, b: Row) -> Difference | None:
    """Where two timelines first say something else; None where they say the same to the end."""
    return _first(a, b, _essence)


def first_other_call(a: Row, b: Row) -> Difference | None:
    """Where another thing is called than in the other, whatever the numbers; None where they go the same way."""
    return _first(a, b, lambda step: (step["name"], step["epoch"], step["rank"], bool(step["error"])))


def _first(a: Row, b: Row, essence: Callable[[Row], Any]) -> Difference | None:
    for one, other in zip_longest(_told(a), _told(b)):
        if one is None or other is None or essence(one[1]) != essence(other[1]):
            return Difference((one and one[0], other and other[0]), (one and _says(one[1]), other and _says(other[1])))
    return None


def account_rows(a: Row, b: Row) -> list[Row]:
    """Both accounts as they stand, a row for each number; `differs` where they do."""
    rows = []
    for name in NUMBERS:
        one, other = a["request"].get(name), b["request"].get(name)
        rows.append({"name": name, "a": wording.shown(one), "b": wording.shown(other), "differs": one != other})
    return rows


def step_rows(a: Row, b: Row) -> list[Row]:
    """Both stories, step beside step; the first column says where they differ."""
    difference = first_difference(a, b)
    rows = []
    for one, other in zip_longest(_told(a), _told(b)):
        same = one is not None and other is not None and _essence(one[1]) == _essence(other[1])
        first = difference is not None and difference.steps == (one and one[0], other and other[0])
        rows.append(
            {
                "": "first" if first else "" if same else "differs",
                "A step": one and one[0],
                "A": one and _says(one[1]),
                "B step": other and other[0],
                "B": other and _says(other[1]),
            }
        )
    return rows


def _told(timeline: Row) -> list[tuple[int, Row]]:
    """The steps of our recorders with their numbers on the request's page."""
    return [(number, step) for number, step in enumerate(timeline["steps"], 1) if not step["foreign"]]


def _essence(step: Row) -> tuple[Any, ...]:
    numbers = {name: value for name, value in step["numbers"].items() if name not in _OWN}
    return step["name"], step["epoch"], step["rank"], step["error"], sorted(numbers.items(), key=str)


def _says(step: Row) -> str:
    said = f"{wording.kind(step['name'])}: {wording.said(step['name'], step['numbers'])}"
    return f"{said}; raised {step['error']}" if step["error"] else said
