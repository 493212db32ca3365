"""A workload of `kvtrail check`: what one trial plays, with what the connector is configured, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtrail.connector.simulate.scenario import Scenario


@dataclass(frozen=True)
class Workload:
    """What one trial plays.

    Attributes:
        scenario: the load, on one engine or on two.
        profile, seed: what drew it.
        extra: the connector's configuration.
    """

    scenario: Scenario
    profile: str
    seed: int
    extra: Mapping[str, Any] = field(default_factory=dict)
