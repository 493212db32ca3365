"""The content of one line of a log, before it is joined with its neighbours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from kvtrail.tracer.events.semconv import Kind

NUMBER = r"(?:\d{1,3}(?:[,_]\d{3}){1,4}(?![,_]?\d)|\d{1,15})(?:\.0+(?!\d))?"
"""A count, also with its thousands apart or printed as a fraction; longer runs of digits are damage, and would not fit into a
span."""

ID_STOPS = r"\s,\"'`\\"
"""Characters, inside a class of a pattern, that end the id of a request. A quotation mark ends a quoted line, too."""


class Role(Enum):
    """How a reading is put together with others."""

    EVENT = auto()
    """It is an event, complete in itself."""
    STORING = auto()
    """It announces the store that the process will report next."""
    STORED = auto()
    RETRIEVED = auto()
    SHORT_OF = auto()
    """It names the request of the shortfall that the process will report next."""
    SHORTFALL = auto()
    MISMATCH = auto()
    FAILURE = auto()
    """A call that raised. Every process that hears of it prints it again."""
    NOT_STORED = auto()
    """The store that the process has announced last is given up."""
    DEATH = auto()
    """vLLM says that its engine has died."""
    NOTE = auto()
    """It belongs to the timeline, but no event can represent it."""


@dataclass(slots=True)
class Reading:
    """One parsed line: the fields of its event, and its content in words."""

    role: Role
    words: str
    request: str | None = None
    kind: Kind | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    connector: str = ""
    connector_id: str = ""
    error: str | None = None
    remarkable: bool = False
    is_fatal: bool = False
    """Whether nobody caught the exception: it ended the engine's process."""


@dataclass(frozen=True, slots=True)
class LinePattern:
    """One kind of line.

    Attributes:
        hint: text that it always holds; looking for it is cheaper than matching.
        pattern: matches the line.
        read: what a match says; None where it means something else.
        connector: of the event, where `read` names none.
    """

    hint: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Reading | None]
    connector: str = ""


def pattern_of(hint: str, pattern: str, read: Callable[[re.Match[str]], Reading | None]) -> LinePattern:
    """A pattern by its regular expression."""
    return LinePattern(hint, re.compile(pattern), read)


def note(words: str, *, role: Role = Role.NOTE, remarkable: bool = False) -> Callable[[re.Match[str]], Reading]:
    """Reads a line without fields. `words` are a format: the pattern's groups under their names, and the match as `{0}`."""

    def read(match: re.Match[str]) -> Reading:
        groups = match.groupdict()
        return Reading(role, words.format(match[0], **groups), groups.get("request") or None, remarkable=remarkable)

    return read


def event(
    kind: Kind, words: str, fields: Mapping[str, Any] | None = None, *, remarkable: bool = False
) -> Callable[[re.Match[str]], Reading]:
    """Reads a line that is an event with constant fields; `words` as for `note`."""
    as_note = note(words, role=Role.EVENT, remarkable=remarkable)
    return lambda match: replace(as_note(match), kind=kind, fields=dict(fields or {}))


def numbers(match: re.Match[str], *names: str) -> list[int]:
    """Named groups as numbers."""
    return [number(match[name]) for name in names]


def number(text: str) -> int:
    """A `NUMBER`, or one with a sign."""
    return int(text.partition(".")[0].replace(",", "").replace("_", ""))
