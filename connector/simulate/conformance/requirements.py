"""The requirements of vLLM's connector interface, as `requirements.toml` has them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

import msgspec

from kvtrail.connector.simulate.check.features import Feature

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
        judged_by: judges (`verdict.py`): ids of rules, and what else a session judges by.
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


REQUIREMENTS: Sequence[Requirement] = msgspec.convert(
    tomllib.loads(files(__package__).joinpath("requirements.toml").read_text(encoding="utf-8"))["requirement"],
    tuple[Requirement, ...],
)


def of_level(asked: str) -> Sequence[Requirement]:
    """Those of `core`, of `extended`, or `all`."""
    return [each for each in REQUIREMENTS if asked == "all" or each.level is Level(asked)]
