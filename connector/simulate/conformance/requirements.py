"""The requirements of vLLM's connector interface, as `requirements.toml` has them.

`python -m kvtrail.connector.simulate.conformance.requirements` prints the tables of docs/check.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

from kvtrail.connector.simulate.check.features import Feature

FILE = "requirements.toml"
SUITE_VERSION = "1"
"""Raised when requirements are added, or judged by more: only reports of one version can be compared cell by cell."""


class Level(StrEnum):
    """Which connectors a requirement is for."""

    CORE = "core"
    """All of them."""
    EXTENDED = "extended"
    """Those that have a feature."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a connector must do.

    Attributes:
        id: `LEVEL.SUBJECT.NAME`; it stays the same from version to version of the suite.
        sentence: what must hold.
        source: who says so: vLLM's docstring or code, by a version in which it stands there, or an issue.
        judged_by: judges (`judges.py`): ids of rules, and what else a session judges by.
        reached_by: the coverage points at which it is at risk; it is reached as often as all of them together.
        feature: the feature that an extended requirement belongs to.
        covers_all: whether it stands for all of core in the feature's world: a failure that only several ranks show is one
            of several ranks.
    """

    id: str
    sentence: str
    source: str
    judged_by: tuple[str, ...]
    reached_by: tuple[str, ...]
    feature: Feature | None = None
    covers_all: bool = False

    @property
    def level(self) -> Level:
        return Level(self.id.partition(".")[0])

    @property
    def subject(self) -> str:
        """The part of the contract: `lookup`, `load`, `async-loads`."""
        return self.id.split(".")[1]

    @property
    def heading(self) -> str:
        """The heading under which it is listed: its level, and its feature if it has one."""
        return self.level if self.feature is None else f"{self.level}: {self.feature}"


def load(text: str) -> Sequence[Requirement]:
    """The requirements of a file's text.

    Raises:
        ValueError: one of them lacks something, has something unknown, or comes twice; the text says which.
    """
    found: dict[str, Requirement] = {}
    for entry in tomllib.loads(text)["requirement"]:
        name = entry.get("id")
        if name in found:
            raise ValueError(f"{FILE}: {name} comes twice")
        try:
            found[name] = _requirement(entry)
        except (TypeError, ValueError) as wrong:
            raise ValueError(f"{FILE}: {name}: {wrong}") from wrong
    return tuple(found.values())


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    feature = entry.get("feature")
    lists = {name: tuple(entry.get(name, ())) for name in ("judged_by", "reached_by")}
    made = Requirement(**{**entry, **lists, "feature": None if feature is None else Feature(feature)})
    if (made.level is Level.CORE) != (feature is None):
        raise ValueError("an extended requirement has a feature, and one of core has none")
    if not all((made.sentence, made.source, made.judged_by, made.reached_by)):
        raise ValueError("a sentence, a source, judges and points are needed")
    return made


REQUIREMENTS = load(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def of_level(asked: str) -> Sequence[Requirement]:
    """Those of `core`, of `extended`, or `all`."""
    return [each for each in REQUIREMENTS if asked == "all" or each.level is Level(asked)]
