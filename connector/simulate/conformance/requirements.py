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
"""The version of the suite, which changes with its requirements and judges. Reports of different versions are not
comparable."""


class Level(StrEnum):
    """The connectors that a requirement applies to."""

    CORE = "core"
    """All connectors."""
    EXTENDED = "extended"
    """Connectors with a feature."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a connector must do.

    Attributes:
        id: `LEVEL.SUBJECT.NAME`; it is the same in each version of the suite.
        sentence: the condition that must hold.
        source: the source of the requirement: a docstring or code of a version of vLLM, or an issue.
        judged_by: its judges (`verdict.py`): ids of rules, and other judges of a session.
        reached_by: the coverage points at which it is at risk; it counts as reached as often as all of them together.
        feature: the feature that an extended requirement belongs to.
        covers_all: whether it represents all core requirements with this feature: a failure that appears only with several
            ranks breaks the one of several ranks.
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
        """The part of the contract, such as `lookup`, `load` or `async-loads`."""
        return self.id.split(".")[1]


REQUIREMENTS: Sequence[Requirement] = msgspec.convert(
    tomllib.loads(files(__package__).joinpath("requirements.toml").read_text(encoding="utf-8"))["requirement"],
    tuple[Requirement, ...],
)


def of_level(asked: str) -> Sequence[Requirement]:
    """The requirements of the level `core` or `extended`, or `all` of them."""
    return [each for each in REQUIREMENTS if asked == "all" or each.level is Level(asked)]
