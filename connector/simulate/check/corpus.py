"""The runs of a session that reached something new, from which further workloads are made."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvtrail.connector.simulate.check.mutation import mutated
from kvtrail.connector.simulate.check.reached import Moment
from kvtrail.connector.simulate.check.situations import situations
from kvtrail.connector.simulate.check.workload import Workload
from kvtrail.connector.simulate.scenario import Scenario

MOST_KEPT = 500
"""Runs of a corpus; beyond that the longest one is forgotten."""


@dataclass(frozen=True)
class Kept:
    """A run that reached something new.

    Attributes:
        workload, scenario: what ran.
        reached: its situations.
        steps: how long it took.
        busy: the steps in which a transfer was open.
    """

    workload: Workload
    scenario: Scenario
    reached: frozenset[str]
    steps: int
    busy: tuple[int, ...]


@dataclass
class _Yield:
    """New situations and steps of the runs of a profile, each run counting half as much as the one after it."""

    news: float = 0.0
    steps: float = 0.0

    def add(self, news: int, steps: int) -> None:
        self.news, self.steps = self.news / 2 + news, self.steps / 2 + steps

    @property
    def per_step(self) -> float:
        """What may be expected of another run: one situation more than was seen, so that nothing is given up for good."""
        return (self.news + 1) / max(self.steps, 1)


@dataclass
class Corpus:
    """Runs that are kept, and how many runs have reached each situation. What it chooses depends on its seed, and on what it
    was shown."""

    seed: int
    kept: list[Kept] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    _chosen: int = 0
    _yields: defaultdict[str, _Yield] = field(default_factory=lambda: defaultdict(_Yield))

    def show(self, workload: Workload, moments: Sequence[Moment], *, steps: int, may_keep: bool = True) -> int:
        """Take note of a run, and keep it if it reached something new; returns how many situations are new. Runs on two
        engines are not kept."""
        reached = situations(moments)
        news = sum(situation not in self.seen for situation in reached)
        self.seen.update(reached)
        if not workload.is_mutated:
            self._yields[workload.profile].add(news, steps)
        if news and may_keep and isinstance(workload.scenario, Scenario):
            busy = tuple(sorted({moment.step for moment in moments if moment.loads or moment.stores}))
            self.kept.append(Kept(workload, workload.scenario, reached, steps, busy))
            if len(self.kept) > MOST_KEPT:
                self.kept.remove(max(self.kept, key=lambda each: each.steps))
        return news

    def best_profile(self, profiles: Sequence[str]) -> str:
        """The one of these with runs that have lately shown the most that is new per step."""
        return max(profiles, key=lambda profile: self._yields[profile].per_step)

    def choose(self) -> Workload:
        """A mutation of a kept run: of those that reached something that few have, the shortest."""
        self._chosen += 1
        rng = random.Random(f"{self.seed}/mutation/{self._chosen}")
        held = sorted({situation for each in self.kept for situation in each.reached})
        rare = rng.choices(held, [1 / self.seen[situation] for situation in held])[0]
        base = min((each for each in self.kept if rare in each.reached), key=lambda each: each.steps)
        scenario = mutated(base.scenario, rng.choice(self.kept).scenario, rng, busy=base.busy)
        return replace(base.workload, scenario=scenario, is_mutated=True)
