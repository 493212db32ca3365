"""What of the store was met that cannot be read: it is left out of answers, so somebody has to say that it is there."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("kvtrail")

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


def rows() -> int:
    """How many rows were met since the process began that cannot be read."""
    return sum(map(len, _met.values()))


def sentence() -> str | None:
    """What an operator is to know of them; None if none was met."""
    if not (tables := sorted(table for table, known in _met.items() if known)):
        return None
    rows_ = "1 damaged row" if rows() == 1 else f"{rows():,} damaged rows"
    return f"the store has {rows_} ({', '.join(tables)}), left out of answers: {REMEDY}"
