"""What `kvtrail check` finds in connectors with a planted bug: the failures, and the scenarios to which they are shrunk."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parents[1] / "connector/simulate/check"))  # where vLLM imports `planted` from

from kvtrail.connector.simulate.check import session
from kvtrail.connector.simulate.check.profiles import scenario_of

CLOCK = re.compile(r"\d\d:\d\d:\d\d\.\d{3}")
"""A time of day, which is that of the run."""
RUNS = (
    ("BlocksKeptForEver", "chunked-prefill", 2, 1),
    ("PlanSkipsFirstChunk", "preemption-storm", 20, 0),
)
"""A bug, a profile, how many of the requests that it draws from seed 0 are played, and how often it is tried to shrink what
fails."""


def check() -> dict[str, Any]:
    """What is found of each bug."""
    return {f"{bug} {profile}": _found(*run) for run in RUNS for bug, profile, *_ in [run]}


def _found(bug: str, profile: str, requests: int, tries: int) -> dict[str, Any]:
    scenario = scenario_of(profile, 0)
    few = replace(scenario, arrivals=scenario.arrivals[:requests])
    with mock.patch.object(session, "scenario_of", return_value=few):
        checked = session.check(
            f"planted.bugs:{bug}", config={}, profiles=[profile], runs=1, steps=None, shrink_tries=tries
        )
    return {
        "steps": checked.steps.total(),
        "lookups": f"{checked.lookups}, {checked.hits} hits",
        "loads read": checked.loads_read,
        "blocks compared": checked.blocks_compared,
        "failures": {
            found.failure.id: {
                "text": CLOCK.sub("TIME", found.failure.text),
                "seen": f"{found.small.seen} of {found.small.runs}",
                "steps": found.small.played.steps,
                "scenario": found.small.scenario.as_dict(),
            }
            for found in checked.found
        },
    }
