"""A session of `kvtrail check`: trial after trial, until time, steps or trials are spent."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.check.subject import Subject, varied
from kvtrail.connector.simulate.check.trial import Failure, run, shrunk
from kvtrail.connector.simulate.run import Played
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.model.events import Lookup
from kvtrail.tracer.model.findings import Verdict

SHRINK_S = 30.0
"""Seconds for shrinking one failure."""


@dataclass(frozen=True)
class Found:
    """A failure, with a small scenario that shows it.

    Attributes:
        scenario, played, failure: the small scenario, its run, and the failure as it shows there.
        profile, seed: what drew the scenario that failed first.
        subject: the connector with its configuration.
        original: the scenario that failed first.
    """

    scenario: Scenario
    played: Played
    failure: Failure
    profile: str
    seed: int
    subject: Subject
    original: Scenario


@dataclass(kw_only=True)
class Checked:
    """The result of a session.

    Attributes:
        connector: its name, as the user gave it.
        seed: the first seed.
        found: each failure once, in order.
        repeated: how often each was seen again, by its id.
        trials, steps: of each profile.
        checks: how often each rule gave each verdict, in all trials.
        lookups, hits: lookups of the connector, and those that answered with tokens: a session without hits proves little.
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
    """The connector ran and nothing was recorded, so there is nothing to judge."""


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
    None sets no limit. The same seed gives the same trials.

    Args:
        config: its `kv_connector_extra_config`; by default it is drawn at random for connectors that kvtrail knows.
        shrink_seconds: for shrinking each failure, as soon as it is seen.

    Raises:
        Unbuildable: the connector cannot be built; the text says why.
        NothingRecorded: it is not traced.
    """
    checked = Checked(connector=connector, seed=seed)
    started = time.monotonic()
    asynchronous = False

    def announce(doing: str) -> None:
        checked.seconds = time.monotonic() - started
        on_progress(checked, doing)

    def announce_shrinking(failure: Failure, smallest: Scenario) -> None:
        announce(f"{failure.what}: shrinking, {len(smallest.arrivals)} requests")

    for number in count():
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
                on_try = partial(announce_shrinking, failure)
                small = shrunk(failure, subject, scenario, seconds=shrink_seconds, on_try=on_try)
                checked.found.append(Found(*small, profile, trial_seed, subject, original=scenario))
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
    """Whether it is a death or a hang next to a failure of a rule that was reported before and explains it."""
    known = {found.failure.id for found in checked.found}
    return failure.kind != "rule" and any(other.kind == "rule" and other.id in known for other in failures)


def _count(checked: Checked, profile: str, played: Played) -> None:
    checked.trials[profile] += 1
    checked.steps[profile] += played.steps
    checked.checks.update(played.checks)
    lookups = [event for event in played.events if isinstance(event, Lookup)]
    checked.lookups += len(lookups)
    checked.hits += sum(bool(event.answer) for event in lookups)
