"""Columns of tables: the text of a value, and the appearance of its cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kvtrail.dashboard.content.text import milliseconds, percent
from kvtrail.dashboard.palette import Meaning
from kvtrail.tracer.model import words

LOCALIZED, SHARE, DURATION = "localized", "share", "duration"
"""Formats of numbers: with thousands separators; a share as a percentage; milliseconds with the unit that fits."""
CLOCK = "%m-%d %H:%M:%S"
"""The format of a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Attributes:
        label: the heading; the values' name if empty.
        help: the meaning of the values, shown at the heading.
        width: the maximum width of a cell in pixels; longer text is cut off.
        right: whether it is aligned to the right.
        kind: how the browser draws a cell: `text`, `labels` or `ids`.
        format: of numbers: one of those above, or one of printf's, such as `%.3f s`; empty for other values.
        meanings: of `labels`: the words of a group of the palette, each in its colour.
    """

    label: str = ""
    help: str = ""
    width: int | None = None
    right: bool = False
    kind: str = "text"
    format: str = ""
    meanings: Mapping[str, Meaning] = field(default_factory=dict)

    def cell(self, value: Any) -> Any:
        """A value as sent to the browser."""
        if self.kind == "labels":
            return list(value or ())
        return number(value, self.format) if self.format and not is_missing(value) else text(value)


Numbers = partial(Column, format=LOCALIZED, right=True)
"""Numbers, aligned to the right."""
Labels = partial(Column, kind="labels")
"""Lists of words of one group of the palette, each in its colour."""
Ids = partial(Column, kind="ids")
"""Ids: long ones are cut in their middle, unless they would then be equal (browser/ids.js)."""


def is_missing(value: Any) -> bool:
    """Whether there is no value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def number(value: float, format: str) -> str:
    """A number in a format of a column."""
    if format == LOCALIZED:
        return f"{value:,}" if isinstance(value, int) else _trimmed(f"{value:,.3f}")
    if format == SHARE:
        return percent(value)
    return milliseconds(value) if format == DURATION else format % value


def text(value: Any) -> str:
    """A value without its own format."""
    match value:
        case None | "":
            return words.NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return words.NOTHING if is_missing(value) else _trimmed(f"{value:.4f}")
        case datetime():
            return value.astimezone(UTC).strftime(CLOCK)
        case list() | tuple():
            return ", ".join(map(text, value)) or words.NOTHING
        case _:
            return str(value)


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".")
