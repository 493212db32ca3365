"""Unreadable rows of a store. Answers omit them, so they are counted and reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

logger = logging.getLogger("kvtrail")
Row = TypeVar("Row", bound=Hashable)
Made = TypeVar("Made")

MAX_REMEMBERED = 10_000
"""Maximum number of remembered damaged rows per table, so that each counts once."""
REMEDY = "`kvtrail store verify` lists the damage, `kvtrail store rebuild` restores what is derived from the spans"

_met: dict[str, set[int]] = {}


def note(table: str, row: Hashable, error: Exception, *, costs: str) -> None:
    """Note that a row of this table cannot be read. The first one of each table is logged, with its effect (`costs`)."""
    known = _met.setdefault(table, set())
    if not known:
        logger.error("the store is damaged: rows of %s cannot be read, and %s (%s)", table, costs, error)
    if len(known) < MAX_REMEMBERED:
        known.add(hash(row))


def readable(rows: Iterable[Row], read: Callable[[Row], Made], *, of: str) -> list[Made]:
    """The results of `read` for each row of this table (`of`). A damaged row is omitted and logged."""
    made = []
    for row in rows:
        try:
            made.append(read(row))
        except (ValueError, TypeError, KeyError) as error:
            note(of, row, error, costs=f"are left out; {REMEDY}")
    return made


def rows() -> int:
    """The number of unreadable rows found since the process started."""
    return sum(map(len, _met.values()))


def sentence() -> str | None:
    """A message about them for the operator; None if none was found."""
    if not (tables := sorted(table for table, known in _met.items() if known)):
        return None
    rows_ = "1 damaged row" if rows() == 1 else f"{rows():,} damaged rows"
    return f"the store has {rows_} ({', '.join(tables)}), left out of answers: {REMEDY}"
