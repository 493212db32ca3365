"""A session of `kvtrail check`: trial after trial, until steps, runs or time are spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.connector_under_test import (
    DIED,
    NO_BYTES,
    ConnectorUnderTest,
    build,
    in_turn,
    varied,
    why_fake,
)
from kvtrail.connector.simulate.check.coverage import RunCoverage, reached
from kvtrail.connector.simulate.check.profiles import NOT_FOR_ALL, ORDER, PAIR_PROFILES, SMALL, scenario_of
from kvtrail.connector.simulate.check.trial import Shrunk, run, shrunk
from kvtrail.connector.simulate.judges.failure import CRASH, HANG, Failure
from kvtrail.connector.simulate.pairs.engine import can_be_paired
from kvtrail.connector.simulate.run import Played, Unbuildable
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.model.words import some

STEPS = 20_000
"""Scheduling steps of a session, where the user sets no limit."""
LEAST_STEPS = 100
"""Minimum number of steps that a trial counts for, on average: building an engine takes as long. Otherwise a session with a
connector that dies at once would take hours."""
SHRINK_TRIES = 300
"""Maximum number of runs to shrink one failure."""
ASKED_FOR = "that was asked for"
"""Why fake workers run where the user wants them."""
Known = Mapping[str, Sequence[Scenario]]
NONE_KNOWN: Known = {}
NO_BYTES_TRACE = "no-bytes.jsonl"
"""The file with the trace of `Checked.no_bytes`."""
FEW_STEPS, FEW_HITS = 1000, 20
"""Minimum numbers of steps and hits for a conclusive session."""


@dataclass
class Found:
    """A failure, with a small scenario that shows it.

    Attributes:
        small: the failure in a small scenario.
        tested: the connector with its configuration.
        original: the scenario that failed first.
        profile, seed: the profile and the seed that drew it.
        after: number of scheduling steps of the session by then, with those of this run.
    """

    small: Shrunk
    tested: ConnectorUnderTest
    original: Scenario
    profile: str
    seed: int
    after: int

    @property
    def failure(self) -> Failure:
        return self.small.failure


@dataclass(kw_only=True)
class Checked:
    """The result of a session.

    Attributes:
        connector: the connector's name, as the user gave it.
        seed: the first seed.
        found: each failure once, in order.
        repeated: how often each failure was seen again, by its id.
        trials, steps: number of trials and of scheduling steps, by profile.
        checks: how often each rule gave each verdict on the connector, in all trials.
        lookups, hits: number of lookups, and of those that found tokens; a session without hits proves little.
        loads_read: number of loads with compared bytes.
        blocks_compared: number of blocks with bytes that were compared before a step that reads them.
        reached: how often each coverage point was reached.
        runs: the coverage of each run.
        fake_workers: why its own workers did not run; None if they did.
        no_bytes: the run of its own workers in which loads changed no byte; None if there was none.
        unprobed: why its plans and its store were not observed; None if a probe shows them.
        profiles: the profiles of a round, in order; some come several times.
        refused: why a profile did not run, by profile: the connector does not claim the feature, or it or vLLM refused.
        seconds: duration of the session, with shrinking.
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
    runs: list[RunCoverage] = field(default_factory=list)
    fake_workers: str | None = None
    no_bytes: Played | None = None
    unprobed: str | None = None
    seconds: float = 0.0

    def count(self, profile: str, played: Played, failures: Sequence[Failure]) -> None:
        """Add the results of one run of a profile."""
        hits, points = sum(bool(lookup.answer) for lookup in played.lookups), reached(played)
        self.trials[profile] += 1
        self.steps[profile] += played.steps
        self.checks.update(played.checks)
        self.lookups += len(played.lookups)
        self.hits += hits
        self.loads_read += played.loads_read
        self.blocks_compared += played.blocks_compared
        self.reached += points
        ids = frozenset(each.id for each in failures)
        self.runs.append(RunCoverage(points, played.checks, played.capacity_compared, ids))
        self.unprobed = played.unprobed

    @property
    def inconclusive(self) -> list[str]:
        """Why a session without failures proves nothing, in sentences; empty if it is conclusive."""
        reasons = []
        if self.no_bytes is not None:
            longest = max(self.no_bytes.lookups, key=lambda lookup: lookup.answer or 0)
            reasons.append(
                f"Its own workers do not load, or not on a CPU: a lookup of {longest.request} was answered with"
                f" {longest.answer} of {longest.total} tokens, and no byte of the KV cache changed in any call of its workers"
                f" until the request ran on them. The trace is {NO_BYTES_TRACE}. All other runs had fake workers."
            )
        if self.profiles and all(profile in self.refused for profile in self.profiles):
            return ["Nothing of what was asked for can be driven with this connector."]
        if not self.hits:
            few = {0: "There was no lookup", 1: "The only lookup did not hit"}
            none_hit = few.get(self.lookups, f"None of {self.lookups:,} lookups hit")
            reasons.append(f"{none_hit}, so no load and nothing behind it was tried.")
        elif self.hits < FEW_HITS:
            reasons.append(f"Only {some(self.hits, 'lookup')} hit; at least {FEW_HITS} are needed.")
        if self.steps.total() < FEW_STEPS:
            reasons.append(
                f"Only {some(self.steps.total(), 'scheduling step')} ran; at least {FEW_STEPS:,} are needed."
            )
        missed = [name for name in dict.fromkeys(self.profiles) if not self.trials[name] and name not in self.refused]
        if missed:
            reasons.append(f"The session ended before it came to: {', '.join(missed)}.")
        if self.fake_workers is not None and self.fake_workers.startswith(DIED):
            reasons.append(f"Fakes had to stand in for its workers, since {self.fake_workers}.")
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
    steps: int | None = STEPS,
    runs: int | None = None,
    fake_workers: bool = False,
    stop_at_first: bool = False,
    shrink_tries: int | None = SHRINK_TRIES,
    known: Known = NONE_KNOWN,
    on_progress: Callable[[Checked, str], None] = lambda checked, doing: None,
) -> Checked:
    """Stress a connector, profile after profile, seed after seed, until `steps` or `runs` are spent; None sets no limit. The
    same seed gives the same trials, however fast the machine is.

    Args:
        profiles: those of a round, in order; None for all that are for features of the connector.
        config: its `kv_connector_extra_config`; by default it is chosen, in turn, for connectors that kvtrail knows, and for
            those that say from what.
        fake_workers: do not run its own workers, even if they would run here.
        shrink_tries: runs for shrinking each failure, as soon as it is seen; None sets no limit.
        known: small scenarios of earlier sessions, by the ids of the failures that they show; what they show again is not
            shrunk again.

    Raises:
        Unbuildable: the connector cannot be built; the text says why.
        NothingRecorded: it is not traced.
    """
    checked = Checked(connector=connector, seed=seed, profiles=ORDER if profiles is None else profiles)
    if profiles is None:
        with suppress(AttributeError, ImportError):  # it cannot be imported: the first run says so
            claimed = features.claimed(connector, config or {})
            checked.profiles, checked.refused = features.profiles(connector, config, claimed)
    elif lacking := [name for name in PAIR_PROFILES if name in profiles and not can_be_paired(connector, config)]:
        raise Unbuildable(f"nothing here lets two engines with it hand over to each other: {', '.join(lacking)}")
    session = _Session(checked, config, shrink_tries, known, on_progress)
    if fake_workers:
        checked.fake_workers = ASKED_FOR
    else:
        session.rehearse()
    for profile, number in turns(checked):
        session.play(profile, number)
        trials = checked.trials.total()
        made = max(checked.steps.total(), LEAST_STEPS * trials)
        spent = ((steps, made), (runs, trials))
        if any(most is not None and now >= most for most, now in spent) or (stop_at_first and checked.found):
            break
    if checked.trials and not checked.lookups:
        raise NothingRecorded(f"{checked.connector}: no lookup was recorded in {checked.trials.total()} trials")
    return checked


def turns(checked: Checked) -> Iterator[tuple[str, int]]:
    """The profiles and seeds of a session, without end: round after round, and a new seed for each turn of a profile."""
    turn: Counter[str] = Counter()
    while not checked.refused.keys() >= set(checked.profiles):
        for profile in checked.profiles:
            if profile not in checked.refused:
                yield profile, checked.seed + turn[profile]
                turn[profile] += 1


@dataclass
class _Session:
    """A running session. `config` is None where each turn draws the connector's configuration."""

    checked: Checked
    config: Mapping[str, Any] | None
    shrink_tries: int | None
    known: Known
    on_progress: Callable[[Checked, str], None]
    started: float = field(default_factory=time.monotonic)

    def announce(self, doing: str) -> None:
        self.checked.seconds = time.monotonic() - self.started
        self.on_progress(self.checked, doing)

    def configured(self, profile: str, seed: int) -> Mapping[str, Any]:
        """The connector's configuration in one turn."""
        if self.config is not None:
            return self.config
        return varied(self.checked.connector, in_turn(profile, seed), full=profile in SMALL)

    def rehearse(self) -> None:
        """Find out whether the connector's own workers run."""
        self.announce("rehearsal")
        first = ConnectorUnderTest(self.checked.connector, self.configured("", self.checked.seed))
        self.checked.fake_workers, played = why_fake(first)
        if self.checked.fake_workers == NO_BYTES:
            self.checked.no_bytes = played

    def play(self, profile: str, seed: int) -> None:
        """Run the scenario of a profile and a seed, count its results, and shrink each new failure."""
        checked, extra, scenario = self.checked, self.configured(profile, seed), scenario_of(profile, seed)
        own_workers = checked.fake_workers is None
        tested = ConnectorUnderTest(checked.connector, extra, beside=profile == "multi", own_workers=own_workers)
        if not tested.loads_may_fail:
            scenario = replace(scenario, workers=replace(scenario.workers, load_failures=0.0, fails=()))
        self.announce(profile)
        try:
            played, failures = run(tested, scenario)
        except Unbuildable as refused:
            if profile not in NOT_FOR_ALL:
                raise
            checked.refused[profile] = str(refused).splitlines()[0]
            if set(checked.profiles) <= checked.refused.keys():
                build(tested)  # it raises, if it is not the profile that is refused
            return
        if own_workers and scenario.pair is None and played.loads_read and not played.loads_copied:
            checked.fake_workers, checked.no_bytes = NO_BYTES, played
            tested = replace(tested, own_workers=False)
            played, failures = run(tested, scenario)
        checked.count(profile, played, failures)
        for failure in failures:
            if any(found.failure.id == failure.id for found in checked.found):
                checked.repeated[failure.id] += 1
            elif not _is_consequence(failure, failures, checked):
                small = Shrunk(scenario, played, failure, 1, 1)
                self.shrink(Found(small, tested, scenario, profile, seed, checked.steps.total()))
        self.announce(profile)

    def shrink(self, found: Found) -> None:
        """Report a failure, then shrink it. The failure stays reported if shrinking is interrupted."""
        self.checked.found.append(found)
        small = found.small

        def on_try(smallest: Scenario) -> None:
            self.announce(f"{small.failure.what}: shrinking, {len(smallest.everybody)} requests")

        known = self.known.get(small.failure.id, ())
        found.small = shrunk(
            small.failure,
            small.played,
            found.tested,
            small.scenario,
            tries=self.shrink_tries,
            known=known,
            on_try=on_try,
        )


def _is_consequence(failure: Failure, failures: Sequence[Failure], checked: Checked) -> bool:
    """Whether it is a crash or a hang beside a failure of another kind that was reported before and explains it."""
    known = {found.failure.id for found in checked.found}
    ends = (CRASH, HANG)
    return failure.kind in ends and any(other.kind not in ends and other.id in known for other in failures)
