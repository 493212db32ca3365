"""A workload of `kvtrail check`: what one trial plays, with what the connector is configured, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.pairs.pair_scenario import PairScenario
from kvtrail.connector.simulate.scenario import Scenario


class Workloads(StrEnum):
    """How the workloads of a session are chosen."""

    RANDOM = "random"
    """Each is drawn by its profile and its seed alone."""
    COVERAGE = "coverage"
    """Runs that reach something new are kept. Once each profile had its turn, every other workload is a mutation of one of
    them, and the rest are drawn by the profile that has lately shown the most that is new."""


@dataclass(frozen=True)
class Workload:
    """What one trial plays.

    Attributes:
        scenario: the load, on one engine or on two.
        profile, seed: what drew it, or drew what it is a mutation of.
        extra: the connector's configuration.
        is_mutated: whether it is a mutation, which profile and seed do not give again.
    """

    scenario: Scenario | PairScenario
    profile: str
    seed: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_mutated: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data of a workload on one engine."""
        return {
            "profile": self.profile,
            "seed": self.seed,
            "config": dict(self.extra),
            "scenario": self.scenario.as_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The workload that `as_dict` gave, also after a round trip through JSON, or one that somebody has written: only its
        scenario must be there.

        Raises:
            ValueError: the data is no workload; the text says why.
        """
        try:
            scenario, profile = Scenario.from_dict(data["scenario"]), str(data.get("profile", "mixed"))
            known = cls(scenario, profile, int(data.get("seed", 0)), dict(data.get("config", {})), is_mutated=True)
        except (TypeError, KeyError) as wrong:
            raise ValueError(f"not a workload: {wrong}") from wrong
        if profile not in PROFILES:
            raise ValueError(f"not a workload: there is no profile {profile!r}")
        return known
