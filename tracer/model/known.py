"""Known findings: findings that an operator has declared as known, with a reason and an end.

A known finding is still shown everywhere. It is marked, and alerts leave it out. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

NEVER_NS = 2**62
"""The end of a declaration without an end, in Unix nanoseconds."""


class Place(NamedTuple):
    """The fields of a finding that decide whether it is known, together with its engine's description."""

    rule: str
    engine: str
    connector: str


class Sighting(NamedTuple):
    """When the findings of one place were first and last seen, over all time; Unix nanoseconds."""

    place: Place
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Findings of a rule that are known.

    Attributes:
        rule: the rule's id.
        why: the reason, for readers.
        engine: vLLM's id of the engine, or its name for people; an empty text means any, as for the other two.
        connector: as the finding names it.
        version: vLLM's version or the recorder's, as the engine reports it now. A connector reports none of its own.
        until: the end as it was written; empty if there is none.
        until_ns: it applies before then, Unix nanoseconds.
    """

    rule: str
    why: str
    engine: str = ""
    connector: str = ""
    version: str = ""
    until: str = ""
    until_ns: int = NEVER_NS

    def covers(self, place: Place, about: Mapping[str, Any]) -> bool:
        """Whether it covers the findings of a place; `about` is the engine's entry from `model.engines.listed`."""
        return (
            self.rule == place.rule
            and self.engine in ("", place.engine, about.get("name"))
            and self.connector in ("", place.connector)
            and self.version in ("", about.get("version"), about.get("kvtrail"))
        )

    def as_dict(self) -> dict[str, str | None]:
        """JSON-ready data of a finding that it covers."""
        return {"why": self.why, "until": self.until or None}


class KnownFindings:
    """Which findings are known at one moment.

    Attributes:
        until_ns: the earliest end of a declaration.
    """

    def __init__(self, known: Iterable[Known], engines: Mapping[str, Mapping[str, Any]], *, at_ns: int) -> None:
        """`engines` come from `model.engines.listed`."""
        self._now = [each for each in known if at_ns < each.until_ns]
        self._engines = engines
        self._of: dict[Place, Known | None] = {}
        self.until_ns = min((each.until_ns for each in self._now), default=NEVER_NS)

    def of(self, place: Place) -> Known | None:
        """The first declaration that covers the findings of a place; None if there is none."""
        if place not in self._of:
            about = self._engines.get(place.engine, {})
            self._of[place] = next((each for each in self._now if each.covers(place, about)), None)
        return self._of[place]


def place_of(finding: Mapping[str, Any]) -> Place:
    """The place of a finding in the form of the API and the stores."""
    return Place(*(str(finding[name]) for name in Place._fields))
