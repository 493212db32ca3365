"""From a recording to a test: driven again, made small, written as a pytest file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.simulate.check.regression import as_pytest
from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.check.trial import Failure, failures, run
from kvtrail.connector.simulate.redrive.redrive import Redriven, redrive
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.shrink import shrink
from kvtrail.tracer.replay.history import History

SHRINK_S = 60.0
"""Seconds given to making the scenario small."""


class DoesNotAppear(ValueError):
    """The recorded fault does not appear on the scheduler with this connector; the text says what did."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A recorded fault as a test.

    Attributes:
        source: the test's text.
        failure: what it shows.
        scenario: the small workload, `original` the recorded one.
        driven: the recording's first run.
    """

    source: str
    failure: Failure
    scenario: Scenario
    original: Scenario
    driven: Redriven


def regression(
    history: History,
    *,
    connector: str | None = None,
    config: Mapping[str, Any] | None = None,
    recorder: str | None = None,
    rule: str | None = None,
    shrink_seconds: float = SHRINK_S,
    on_try: Callable[[Scenario], None] = lambda smallest: None,
) -> Regression:
    """A test that fails with the recorded connector's fault.

    The first failure that the recording has too is kept, or that of `rule`; where none of them comes again, the first one
    at all. `connector`, `config` and `recorder` are as for `redrive`. `on_try` hears the smallest scenario so far.

    Raises:
        DoesNotAppear: nothing fails, or not what was asked for.
        NotDrivable, Unbuildable: as for `redrive`.
    """
    driven = redrive(history, connector=connector, config=config, recorder=recorder)
    subject = Subject(driven.connector, driven.workload.settings if config is None else config)
    failure = _chosen(failures(driven.played), driven, rule)

    def fails(candidate: Scenario) -> bool:
        return any(each.id == failure.id for each in run(subject, candidate)[1])

    original = driven.workload.scenario
    small = shrink(original, fails, seconds=shrink_seconds, on_try=on_try)
    (shown,) = (each for each in run(subject, small)[1] if each.id == failure.id)
    return Regression(
        source=as_pytest(small, connector=subject, failure=shown),
        failure=shown,
        scenario=small,
        original=original,
        driven=driven,
    )


def _chosen(found: list[Failure], driven: Redriven, rule: str | None) -> Failure:
    recorded = [name for name, _ in driven.closeness.findings]
    wanted = [rule] if rule is not None else recorded
    for failure in found:
        if failure.kind == "rule" and failure.what in wanted:
            return failure
    if rule is None and found:
        return found[0]
    there = f"found this time: {', '.join(failure.id for failure in found)}" if found else "nothing is found this time"
    asked = (
        f"rule {rule}" if rule is not None else f"what was recorded ({', '.join(dict.fromkeys(recorded)) or 'nothing'})"
    )
    raise DoesNotAppear(f"{asked} does not appear when the recording is driven again with {driven.connector}: {there}")
