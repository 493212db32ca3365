"""`kvtrail check`: trial after trial, until time or steps are spent."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.check.subject import Subject, varied
from kvtrail.connector.simulate.check.trial import Failure, run
from kvtrail.connector.simulate.run import Played
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.shrink import shrink
from kvtrail.tracer.model.events import Lookup
from kvtrail.tracer.model.findings import Verdict

SHRINK_S = 30.0
"""Seconds given to making one failure small."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A failure, made small.

    Attributes:
        failure: of the small scenario.
        profile, seed: which drew the scenario that failed first.
        subject: the connector with its configuration.
        scenario: the small one.
        original: the one that failed first.
        played: the small one's run.
    """

    failure: Failure
    profile: str
    seed: int
    subject: Subject
    scenario: Scenario
    original: Scenario
    played: Played


@dataclass(kw_only=True)
class Checked:
    """What a session saw.

    Attributes:
        connector: its name, as the user gave it.
        seed: the first seed.
        found: each failure once, in the order in which they came.
        repeated: how often each was seen again, by its id.
        trials, steps: of each profile.
        checks: how often each rule gave each verdict, in all trials.
        lookups, hits: lookups of the connector, and those that answered with tokens: a check in which nothing was ever
            hit has seen little.
        seconds: how long it took, shrinking included.
    """

    connector: str
    seed: int
    found: list[Found] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    lookups: int = 0
    hits: int = 0
    seconds: float = 0.0


class NothingRecorded(ValueError):
    """The connector ran, and nothing was told of it: its verdict would mean nothing."""


def check(
    connector: str,
    *,
    config: dict[str, Any] | None = None,
    profiles: Sequence[str] = tuple(PROFILES),
    seed: int = 0,
    seconds: float | None = 60.0,
    steps: int | None = None,
    trials: int | None = None,
    stop_at_first: bool = False,
    shrink_seconds: float = SHRINK_S,
    on_progress: Callable[[Checked, str], None] = lambda checked, doing: None,
) -> Checked:
    """Torture a connector, profile after profile, seed after seed, until `seconds`, `steps` or `trials` are spent;
    None sets no limit.

    `config` is its `kv_connector_extra_config`; without one, those of connectors that we know are drawn at random. Each
    failure is made small as soon as it is seen, for `shrink_seconds` at most. The same seed and steps give the same trials.

    Raises:
        Unbuildable: the connector cannot be made; the text says why.
        NothingRecorded: it is not traced.
    """
    checked = Checked(connector=connector, seed=seed)
    started = time.monotonic()
    asynchronous = False

    def announce(doing: str) -> None:
        checked.seconds = time.monotonic() - started
        on_progress(checked, doing)

    for number in range(10**9):
        profile, trial_seed = profiles[number % len(profiles)], seed + number // len(profiles)
        extra = varied(connector, random.Random(f"{profile}/{trial_seed}")) if config is None else config
        subject = Subject(connector, extra, beside=profile == "multi", may_reset_running=not asynchronous)
        scenario = allowed(scenario_of(profile, trial_seed), subject)
        announce(profile)
        played, failures = run(subject, scenario)
        _count(checked, profile, played)
        if not asynchronous and any(isinstance(e, Lookup) and e.is_async and e.returned for e in played.events):
            asynchronous = True  # what vLLM refuses to such connectors is no failure of theirs
            subject = replace(subject, may_reset_running=False)
            scenario = allowed(scenario, subject)
            played, failures = run(subject, scenario)
        for failure in failures:
            if any(found.failure.id == failure.id for found in checked.found):
                checked.repeated[failure.id] += 1
            elif not _a_consequence(failure, failures, checked):
                checked.found.append(
                    _made_small(failure, subject, scenario, (profile, trial_seed), shrink_seconds, announce)
                )
        announce(profile)
        spent = ((seconds, checked.seconds), (steps, checked.steps.total()), (trials, checked.trials.total()))
        if any(most is not None and now >= most for most, now in spent) or (stop_at_first and checked.found):
            break
    if not checked.lookups:
        raise NothingRecorded(f"{connector}: no lookup was recorded in {checked.trials.total()} trials")
    return checked


def allowed(scenario: Scenario, subject: Subject) -> Scenario:
    """The scenario without what vLLM does not support for such a connector."""
    if subject.may_reset_running:
        return scenario
    return replace(scenario, resets=tuple(replace(each, running=False) for each in scenario.resets))


def _a_consequence(failure: Failure, failures: Sequence[Failure], checked: Checked) -> bool:
    """A death or a hang beside a rule that has been told already: the rule says why."""
    known = {found.failure.id for found in checked.found}
    return failure.kind != "rule" and any(other.kind == "rule" and other.id in known for other in failures)


def _made_small(
    failure: Failure,
    subject: Subject,
    scenario: Scenario,
    drawn_by: tuple[str, int],
    seconds: float,
    announce: Callable[[str], None],
) -> Found:
    def fails(candidate: Scenario) -> bool:
        return any(each.id == failure.id for each in run(subject, candidate)[1])

    small = shrink(
        scenario,
        fails,
        seconds=seconds,
        on_try=lambda smallest: announce(f"{failure.what}: shrinking, {len(smallest.arrivals)} requests"),
    )
    played, failures = run(subject, small)
    (same,) = (each for each in failures if each.id == failure.id)
    profile, seed = drawn_by
    return Found(
        failure=same, profile=profile, seed=seed, subject=subject, scenario=small, original=scenario, played=played
    )


def _count(checked: Checked, profile: str, played: Played) -> None:
    checked.trials[profile] += 1
    checked.steps[profile] += played.steps
    for key, count in played.checks.items():
        checked.checks[key] += count
    lookups = [event for event in played.events if isinstance(event, Lookup)]
    checked.lookups += len(lookups)
    checked.hits += sum(bool(event.answer) for event in lookups)
