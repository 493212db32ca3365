"""A session of `kvtrail check`: trial after trial, until steps, runs or time are spent."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from kvtrail.connector.simulate.check import rehearsal
from kvtrail.connector.simulate.check.pair_profiles import PAIR_PROFILES, can_be_paired, pair_of
from kvtrail.connector.simulate.check.profiles import NOT_FOR_ALL, PROFILES, scenario_of
from kvtrail.connector.simulate.check.reached import reached
from kvtrail.connector.simulate.check.subject import Subject, varied
from kvtrail.connector.simulate.check.trial import CRASH, HANG, Failure, Shrunk, run, shrunk
from kvtrail.connector.simulate.pair_scenario import PairScenario
from kvtrail.connector.simulate.run import Played, Unbuildable
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.model.words import some

STEPS = 20_000
"""Scheduling steps of a session, where the user sets no limit."""
SHRINK_TRIES = 300
"""Runs for shrinking one failure."""
FEW_STEPS, FEW_HITS = 1000, 20
"""Fewer than these prove nothing."""


@dataclass(frozen=True)
class Found:
    """A failure, with a small scenario that shows it.

    Attributes:
        small: the failure as a small scenario shows it.
        profile, seed: what drew the scenario that failed first.
        subject: the connector with its configuration.
        original: the scenario that failed first.
    """

    small: Shrunk
    profile: str
    seed: int
    subject: Subject
    original: Scenario | PairScenario

    @property
    def failure(self) -> Failure:
        return self.small.failure


@dataclass(kw_only=True)
class Checked:
    """The result of a session.

    Attributes:
        connector: its name, as the user gave it.
        seed: the first seed.
        found: each failure once, in order.
        repeated: how often each was seen again, by its id.
        trials, steps: of each profile.
        checks: how often each rule gave each verdict to the connector, in all trials.
        lookups, hits: lookups of the connector, and those that answered with tokens: a session without hits proves little.
        loads_read: loads whose bytes were looked at.
        blocks_compared: blocks whose bytes were compared before a step that reads them.
        reached: how often each of the `points` was reached.
        fake_workers: why its own workers did not run; None if they did.
        unprobed: why nothing was seen of its plans and its store; None if a probe shows them.
        profiles: those that were asked for.
        refused: why the connector, or vLLM with it, refused a profile that is not for all, by profile.
        seconds: how long it took, shrinking included.
    """

    connector: str
    seed: int
    profiles: Sequence[str] = ()
    refused: dict[str, str] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    lookups: int = 0
    hits: int = 0
    loads_read: int = 0
    blocks_compared: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    fake_workers: str | None = None
    unprobed: str | None = None
    seconds: float = 0.0

    @property
    def inconclusive(self) -> list[str]:
        """Why nothing found proves nothing, in sentences; empty if it proves something."""
        reasons = []
        if self.profiles and all(profile in self.refused for profile in self.profiles):
            return ["Nothing of what was asked for can be driven with this connector."]
        if not self.hits:
            few = {0: "There was no lookup", 1: "The only lookup did not hit"}
            none_hit = few.get(self.lookups, f"None of {self.lookups:,} lookups hit")
            reasons.append(f"{none_hit}, so no load and nothing behind it was tried.")
        elif self.hits < FEW_HITS or self.steps.total() < FEW_STEPS:
            reasons.append(
                f"{some(self.steps.total(), 'step')} with {some(self.hits, 'hit')} are too few: {FEW_STEPS:,} steps and"
                f" {FEW_HITS} hits are the least."
            )
        if missed := [name for name in self.profiles if not self.trials[name] and name not in self.refused]:
            reasons.append(f"The session ended before it came to: {', '.join(missed)}.")
        if self.unprobed is not None and self.unprobed.startswith("it failed"):
            reasons.append(f"The connector's probe saw nothing: {self.unprobed}.")
        return reasons


class NothingRecorded(ValueError):
    """The connector ran and nothing was recorded, so there is nothing to judge."""


def check(
    connector: str,
    *,
    config: dict[str, Any] | None = None,
    profiles: Sequence[str] | None = None,
    seed: int = 0,
    seconds: float | None = None,
    steps: int | None = STEPS,
    runs: int | None = None,
    fake_workers: bool = False,
    stop_at_first: bool = False,
    shrink_tries: int | None = SHRINK_TRIES,
    on_progress: Callable[[Checked, str], None] = lambda checked, doing: None,
) -> Checked:
    """Torture a connector, profile after profile, seed after seed, until `steps`, `runs` or `seconds` are spent; None sets no
    limit. The same seed gives the same trials, however fast the machine is.

    Args:
        profiles: None for all, of pairs of engines only where the connector hands over from one to another.
        config: its `kv_connector_extra_config`; by default it is drawn at random for connectors that kvtrail knows, and for
            those that say from what.
        fake_workers: do not run its own workers, even if they would run here.
        shrink_tries: runs for shrinking each failure, as soon as it is seen; None sets no limit.

    Raises:
        Unbuildable: the connector cannot be built; the text says why.
        NothingRecorded: it is not traced.
    """
    pairs = tuple(PAIR_PROFILES) if can_be_paired(connector, config) else ()
    profiles = (*pairs, *PROFILES) if profiles is None else profiles
    if lacking := set(profiles) & PAIR_PROFILES.keys() - set(pairs):
        raise Unbuildable(f"nothing here lets two engines with it hand over to each other: {', '.join(lacking)}")
    checked = Checked(connector=connector, seed=seed, profiles=profiles)
    started = time.monotonic()
    asynchronous: list[Mapping[str, Any]] = []
    """The configurations with which it has loaded between steps."""

    def announce(doing: str) -> None:
        checked.seconds = time.monotonic() - started
        on_progress(checked, doing)

    def announce_shrinking(failure: Failure, smallest: Scenario | PairScenario) -> None:
        announce(f"{failure.what}: shrinking, {len(smallest.arrivals)} requests")

    if fake_workers:
        checked.fake_workers = "that was asked for"
    else:
        announce("rehearsal")
        first = varied(connector, random.Random(seed)) if config is None else config
        checked.fake_workers = rehearsal.why_fake(Subject(connector, first))
    for number in count():
        profile, trial_seed = profiles[number % len(profiles)], seed + number // len(profiles)
        if profile in checked.refused:
            continue
        extra = varied(connector, random.Random(f"{profile}/{trial_seed}")) if config is None else config
        beside = profile == "multi"
        subject = Subject(
            connector,
            extra,
            beside=beside,
            own_workers=not beside and checked.fake_workers is None,
            may_reset_running=extra not in asynchronous,
        )
        paired = profile in PAIR_PROFILES
        scenario = pair_of(profile, trial_seed) if paired else allowed(scenario_of(profile, trial_seed), subject)
        announce(profile)
        try:
            played, failures = run(subject, scenario)
        except Unbuildable as refused:
            if profile not in NOT_FOR_ALL:
                raise
            checked.refused[profile] = str(refused).splitlines()[0]
            if not set(profiles) <= checked.refused.keys():
                continue
            rehearsal.build(subject)  # it raises, if it is not the profile that is refused
            break
        if subject.own_workers and not paired and played.loads_read and not played.loads_copied:
            checked.fake_workers = rehearsal.NO_BYTES
            subject = replace(subject, own_workers=False)
            played, failures = run(subject, scenario)
        _count(checked, profile, played)
        waits = any(lookup.is_async and lookup.returned for lookup in played.lookups)
        if waits and subject.may_reset_running and not isinstance(scenario, PairScenario):
            asynchronous.append(extra)
            subject = replace(subject, may_reset_running=False)
            if (without := allowed(scenario, subject)) != scenario:
                scenario = without  # what vLLM refuses to such connectors is no failure of theirs
                played, failures = run(subject, scenario)
        for failure in failures:
            if any(found.failure.id == failure.id for found in checked.found):
                checked.repeated[failure.id] += 1
            elif not _a_consequence(failure, failures, checked):
                on_try = partial(announce_shrinking, failure)
                small = shrunk(failure, played, subject, scenario, tries=shrink_tries, on_try=on_try)
                checked.found.append(Found(small, profile, trial_seed, subject, original=scenario))
        announce(profile)
        spent = ((seconds, checked.seconds), (steps, checked.steps.total()), (runs, checked.trials.total()))
        if any(most is not None and now >= most for most, now in spent) or (stop_at_first and checked.found):
            break
    if checked.trials and not checked.lookups:
        raise NothingRecorded(f"{connector}: no lookup was recorded in {checked.trials.total()} trials")
    return checked


def allowed(scenario: Scenario, subject: Subject) -> Scenario:
    """The scenario without what vLLM does not support for such a connector."""
    if subject.may_reset_running:
        return scenario
    return replace(scenario, resets=tuple(replace(each, running=False) for each in scenario.resets))


def _a_consequence(failure: Failure, failures: Sequence[Failure], checked: Checked) -> bool:
    """Whether it is a death or a hang next to a failure of another kind that was reported before and explains it."""
    known = {found.failure.id for found in checked.found}
    ends = (CRASH, HANG)
    return failure.kind in ends and any(other.kind not in ends and other.id in known for other in failures)


def _count(checked: Checked, profile: str, played: Played) -> None:
    checked.trials[profile] += 1
    checked.steps[profile] += played.steps
    checked.checks.update(played.checks)
    checked.lookups += len(played.lookups)
    checked.hits += sum(bool(lookup.answer) for lookup in played.lookups)
    checked.loads_read += played.loads_read
    checked.blocks_compared += played.blocks_compared
    checked.reached += reached(played)
    checked.unprobed = played.unprobed
