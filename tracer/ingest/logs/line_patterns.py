"""The patterns of lines in a log, and the reading of one line before it is joined with others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from kvtrail.tracer.events.semconv import Kind

NUMBER = r"\d{1,15}(?!\d)"
"""A count. Longer runs of digits are treated as damage; they would not fit into a span."""

ID_STOPS = r"\s,\"'`\\"
"""Characters, inside a class of a pattern, that end the id of a request. A quotation mark ends a quoted line, too."""


class Role(Enum):
    """How a reading is joined with others."""

    EVENT = auto()
    """A complete event."""
    STORING = auto()
    """Announces the store that the process will report next."""
    STORED = auto()
    NOT_STORED = auto()
    """The store that the process announced last will not happen."""
    RETRIEVED = auto()
    SHORT_OF = auto()
    """Names the request of the shortfall that the process will report next."""
    SHORTFALL = auto()
    FAILURE = auto()
    """A call that raised. Several processes may print it."""
    DEATH = auto()
    """vLLM reports that its engine has died."""


@dataclass(slots=True)
class Reading:
    """One parsed line, and the fields of its event."""

    role: Role
    request: str | None = None
    kind: Kind | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    connector: str = ""
    connector_id: str = ""
    error: str | None = None
    is_fatal: bool = False
    """Whether nothing caught the exception, so that it ended the engine's process."""


@dataclass(frozen=True, slots=True)
class LinePattern:
    """One kind of line.

    Attributes:
        hint: text that every such line contains; searching for it is cheaper than matching.
        pattern: matches the line.
        read: returns the reading of a match; None if the line means something else.
        connector: the event's connector, if `read` names none.
    """

    hint: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Reading | None]
    connector: str = ""


def pattern_of(
    hint: str, pattern: str, read: Callable[[re.Match[str]], Reading | None], connector: str = ""
) -> LinePattern:
    """A pattern by its regular expression."""
    return LinePattern(hint, re.compile(pattern), read, connector)


def always(role: Role, kind: Kind | None = None, **fields: Any) -> Callable[[re.Match[str]], Reading]:
    """Make a reader for a line that names at most a request; `fields` are the other fields."""
    return lambda match: Reading(role, match.groupdict().get("request") or None, kind, fields.copy())


def numbers(match: re.Match[str], *names: str) -> list[int]:
    """Named groups as numbers."""
    return [int(match[name]) for name in names]
