"""A trial: one scenario run with a connector, and how it failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.run import Played, play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.shrink import shrink

_NUMBERS = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\b[a-z]+-\S+")


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a trial.

    Attributes:
        kind: `rule`, `crash` or `hang`.
        what: the rule; what the engine died of, without numbers; or `requests never end`.
        text: the explanation, with this trial's numbers.
    """

    kind: str
    what: str
    text: str

    @property
    def id(self) -> str:
        """Equal for failures of the same kind; the name in reports."""
        return f"{self.kind}: {self.what}"


def failures(played: Played) -> list[Failure]:
    """What went wrong in a run. A rule comes before the death that it explains."""
    found: dict[str, Failure] = {}
    for finding in played.findings:
        failure = Failure("rule", finding.rule, finding.explanation)
        found.setdefault(failure.id, failure)
    if played.error is not None:
        failure = Failure("crash", without_numbers(played.error), played.error)
        found.setdefault(failure.id, failure)
    elif played.unfinished:
        waiting = ", ".join(played.unfinished[:5])
        text = f"{len(played.unfinished)} requests had not ended after {played.steps} steps: {waiting}"
        failure = Failure("hang", "requests never end", text)
        found.setdefault(failure.id, failure)
    return list(found.values())


def run(subject: Subject, scenario: Scenario) -> tuple[Played, list[Failure]]:
    """Play a scenario with the connector. What also happens without any connector is not its failure."""
    played = play(scenario, subject.configuration())
    found = failures(played)
    if any(failure.kind != "rule" for failure in found):
        alone = {failure.id for failure in failures(play(scenario, None))}
        found = [failure for failure in found if failure.id not in alone]
    return played, found


def shrunk(
    failure: Failure,
    subject: Subject,
    scenario: Scenario,
    *,
    seconds: float,
    on_try: Callable[[Scenario], None] = lambda smallest: None,
) -> tuple[Scenario, Played, Failure]:
    """Shrink a scenario for `seconds` at most, as long as it fails in the same way. Returns the smallest scenario, its run,
    and the failure there."""

    def fails(candidate: Scenario) -> bool:
        return any(each.id == failure.id for each in run(subject, candidate)[1])

    smallest = shrink(scenario, fails, seconds=seconds, on_try=on_try)
    played, found = run(subject, smallest)
    return smallest, played, next(each for each in found if each.id == failure.id)


def without_numbers(text: str) -> str:
    """An error's text without what differs from trial to trial: numbers, names, ids."""
    return _NUMBERS.sub("…", text.splitlines()[0])[:160] if text else text
