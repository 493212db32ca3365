"""The state of a table while a page is open: rows keep their place, and new rows wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Shown = TypeVar("Shown")


@dataclass(slots=True)
class TableState(Generic[Shown]):
    """A table on an open page.

    Attributes:
        question: the query behind its rows, such as filters and a sort order; another query begins another table.
        number: the number of tables before it. A browser that lags behind reports a click with the number of the table that
            it still shows.
        rows: the rows shown, in order, by identity. A row that is no longer in any answer keeps its last values.
        waiting: the number of new rows not shown yet.
        is_over: whether the reader asked for the waiting rows.
    """

    question: str
    number: int
    rows: dict[Hashable, Shown]
    waiting: int = 0
    is_over: bool = False

    def update(self, answer: Mapping[Hashable, Shown], *, appends: bool = False) -> None:
        """Take the values of a newer answer. New rows wait, or come last if the table `appends` them."""
        self.rows = {name: answer.get(name, row) for name, row in self.rows.items()}
        new = {name: row for name, row in answer.items() if name not in self.rows}
        if appends:
            self.rows.update(new)
        else:
            self.waiting = len(new)


def disambiguated(names: Iterable[Hashable]) -> list[Hashable]:
    """The names; each repeat of a name gets a number."""
    seen: Counter[Hashable] = Counter()
    apart: list[Hashable] = []
    for name in names:
        apart.append((name, seen[name]) if seen[name] else name)
        seen[name] += 1
    return apart
