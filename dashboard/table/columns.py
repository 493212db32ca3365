"""Columns of tables: the text of a value, and how its cell looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from kvtrail.dashboard import palette
from kvtrail.dashboard.palette import Meaning
from kvtrail.tracer.model import words

LOCALIZED, TENTHS, PERCENT, DURATION = "localized", "tenths", "percent", "duration"
"""Formats of numbers: with thousands separators; the same with one decimal; a share as a percentage; milliseconds with the
unit that fits."""

CLOCK = "%m-%d %H:%M:%S"
"""The format of a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of text, or of values that need no format.

    Attributes:
        label: the heading; the values' name if empty.
        help: what the values are, shown at the heading.
        width: the most that a cell takes, in pixels; longer text is cut off.
        right: whether it is aligned to the right.
    """

    label: str = ""
    help: str = ""
    width: int | None = None
    right: bool = False

    kind: ClassVar[str] = "text"
    """How the browser draws a cell."""

    def cell(self, value: Any) -> Any:
        """A value as the browser gets it."""
        return text(value)

    def look(self) -> dict[str, Any]:
        """What the browser needs to draw the cells."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(Column):
    """Numbers in a format: one of those above, or one of printf's, such as `%.3f s`."""

    format: str = LOCALIZED
    right: bool = True

    def cell(self, value: Any) -> str:
        """The number's text."""
        return words.NOTHING if is_missing(value) else number(value, self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments(Column):
    """Moments, in UTC."""

    def cell(self, value: datetime | None) -> str:
        """The moment's text."""
        return words.NOTHING if value is None else moment(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels(Column):
    """Lists of words of one group of the palette, each in its colour."""

    meanings: Mapping[str, Meaning]
    kind: ClassVar[str] = "labels"

    def cell(self, value: Sequence[str] | None) -> list[str]:
        """The words."""
        return list(value or ())

    def look(self) -> dict[str, Any]:
        """The text and the colour of each word."""
        return {"labels": {name: [palette.label(name), each.colour.css] for name, each in self.meanings.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids(Column):
    """Ids: long ones are cut in their middle, unless they would then be equal (browser/ids.js)."""

    kind: ClassVar[str] = "ids"


def is_missing(value: Any) -> bool:
    """Whether there is no value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def number(value: float, format: str) -> str:
    """A number in a format of `Numbers`."""
    if format == LOCALIZED:
        return f"{value:,}" if isinstance(value, int) else _trimmed(f"{value:,.3f}")
    if format == TENTHS:
        return f"{value:,.1f}"
    if format == DURATION:
        return words.duration(round(value * 1e6))
    return words.percent(value) if format == PERCENT else format % value


def moment(at: datetime) -> str:
    """A moment in UTC."""
    return at.astimezone(UTC).strftime(CLOCK)


def text(value: Any) -> str:
    """A value that has no format of its own."""
    match value:
        case None | "":
            return words.NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return words.NOTHING if math.isnan(value) else _trimmed(f"{value:.4f}")
        case datetime():
            return moment(value)
        case list() | tuple():
            return ", ".join(map(text, value)) or words.NOTHING
        case _:
            return str(value)


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".")
