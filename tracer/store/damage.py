"""What of the store was met that cannot be read: it is left out of answers, so somebody has to say that it is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

logger = logging.getLogger("kvtrail")
Row = TypeVar("Row", bound=Hashable)
Made = TypeVar("Made")

MAX_REMEMBERED = 10_000
"""Damaged rows of a table that are remembered, so that one that is met again counts once."""
REMEDY = (
    "`kvtrail store verify` says what is damaged, `kvtrail store rebuild` makes again what is derived from the spans"
)

_met: dict[str, set[int]] = {}


def note(table: str, row: Hashable, error: Exception, *, costs: str) -> None:
    """A row of this table cannot be read. The log says once for each table what that `costs`."""
    known = _met.setdefault(table, set())
    if not known:
        logger.error("the store is damaged: rows of %s cannot be read, and %s (%s)", table, costs, error)
    if len(known) < MAX_REMEMBERED:
        known.add(hash(row))


def readable(rows: Iterable[Row], read: Callable[[Row], Made], *, of: str) -> list[Made]:
    """What `read` makes of each row. One that is damaged is left out, and the log says so; it is `of` this table."""
    made = []
    for row in rows:
        try:
            made.append(read(row))
        except (ValueError, TypeError, KeyError) as error:
            note(of, row, error, costs=f"are left out; {REMEDY}")
    return made


def rows() -> int:
    """How many rows were met since the process began that cannot be read."""
    return sum(map(len, _met.values()))


def sentence() -> str | None:
    """What an operator is to know of them; None if none was met."""
    if not (tables := sorted(table for table, known in _met.items() if known)):
        return None
    rows_ = "1 damaged row" if rows() == 1 else f"{rows():,} damaged rows"
    return f"the store has {rows_} ({', '.join(tables)}), left out of answers: {REMEDY}"
