"""The rows of a table while somebody reads them: they stay where they are, and what comes in between waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Shown = TypeVar("Shown")


@dataclass(slots=True)
class Reading(Generic[Shown]):
    """A table as it is read.

    Attributes:
        question: what its rows answer to, such as filters and a sort order; the answers to another are another table.
        number: how many tables there were before it. A browser that is behind reports a click under the number of the table
            that it still shows.
        rows: what is shown, in its order, by identity. A row that no answer has any more stays as it was last.
        waiting: how many rows there are that are not shown.
        is_over: whether its reader has asked for what waits.
    """

    question: str
    number: int
    rows: dict[Hashable, Shown]
    waiting: int = 0
    is_over: bool = False

    def renew(self, answer: Mapping[Hashable, Shown], *, appends: bool = False) -> None:
        """Take the values of a newer answer. Its new rows wait or, where the table `appends` them, come below the others."""
        self.rows = {name: answer.get(name, row) for name, row in self.rows.items()}
        new = {name: row for name, row in answer.items() if name not in self.rows}
        if appends:
            self.rows.update(new)
        else:
            self.waiting = len(new)


def told_apart(names: Iterable[Hashable]) -> list[Hashable]:
    """The names, those that occur more than once with their number among their like."""
    seen: Counter[Hashable] = Counter()
    apart: list[Hashable] = []
    for name in names:
        apart.append((name, seen[name]) if seen[name] else name)
        seen[name] += 1
    return apart
