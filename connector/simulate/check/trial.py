"""One scenario, run with the connector: whether it failed, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.run import Played, play
from kvtrail.connector.simulate.scenario import Scenario

_NUMBERS = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\b[a-z]+-\S+")


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, of the same kind each time it does.

    Attributes:
        kind: `rule`, `crash` or `hang`.
        what: the rule; what the engine died of, without its numbers; or `requests never end`.
        text: this time, in words.
    """

    kind: str
    what: str
    text: str

    @property
    def id(self) -> str:
        """The same for the same kind of failure; names it in reports."""
        return f"{self.kind}: {self.what}"


def failures(played: Played) -> list[Failure]:
    """What went wrong in a run; empty if nothing did. A rule that names the reason comes before the death it caused."""
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
    """Play a scenario with the connector. What vLLM does without any connector is not the connector's failure."""
    played = play(scenario, subject.configuration())
    found = failures(played)
    if any(failure.kind != "rule" for failure in found):
        alone = {failure.id for failure in failures(play(scenario, None))}
        found = [failure for failure in found if failure.id not in alone]
    return played, found


def without_numbers(text: str) -> str:
    """An error's text without what differs each time: numbers, names, ids."""
    return _NUMBERS.sub("…", text.splitlines()[0])[:160] if text else text
