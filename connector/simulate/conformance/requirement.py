"""What a requirement is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Which connectors a requirement is for."""

    CORE = "core"
    """All of them."""
    EXTENDED = "extended"
    """Those that have a feature."""


class Feature(StrEnum):
    """What a connector may be able to do beyond the core."""

    ASYNC_LOADS = "asynchronous loads"
    ASYNC_LOOKUPS = "asynchronous lookups"
    FAILURES = "failures by block"
    GROUPS = "several KV cache groups"
    RANKS = "several ranks"
    LAYERS = "layer by layer"
    PULL = "hand-off pull"
    PUSH = "hand-off push"
    EVENTS = "cache events"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a connector must do.

    Attributes:
        id: `LEVEL.SUBJECT.NAME`; it stays the same from version to version of the suite.
        sentence: what must hold.
        source: who says so: vLLM's docstring or code, by a version in which it stands there, or an issue.
        judged_by: judges (`judges.py`): ids of rules, and what else a session judges by.
        reached_by: the points at which it is at risk; it is reached as often as all of them together.
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
