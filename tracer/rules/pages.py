"""The page of a rule: its texts, in a Markdown file beside its code.

The front matter is YAML and has the fields of `Page`. The text below it defines the invariant, and the section `## Runbook`
tells an operator what to do about a finding. Documentation, dashboard, API and findings show these texts. A page is read when
it is first needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, structs

from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.model.findings import Severity

_RUNBOOK = "\n## Runbook\n"


KnownBy = Literal["a wrong count", "wrong bytes", "an exception", "a deadline"]
"""How a rule detects a fault: a number, a key or an order of events contradicts another one; a check finds other bytes in a
block than were computed; a call raised; something that could have happened did not happen for a long time."""
Groups = Literal[
    "independent of them", "judged for each of them", "judged for the first group of full attention", "not judged"
]
"""What a rule judges in a model with several KV cache groups. A rule is independent of the groups if it judges calls and
counts of tokens, which are the same for all groups. The blocks of the first group of full attention hold all tokens."""


class Page(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The texts of a rule.

    Attributes:
        title: the fault, as the heading of a finding.
        severities: the severities that its findings may have, worst first.
        hint: the usual cause of a finding, its remedy, and a workaround for a production engine until then.
        known_by: how it detects a fault.
        groups: what it judges in a model with several KV cache groups.
        level: the lowest level of recording at which it finds its drift.
        explanation: a format string: `{0}` is the first witness (see `Witness.__format__`), `{last}` the last one, `{name}`
            one of the finding's numbers.
        explanations: several explanations, by name. If the rule judges in several places, names begin with the finding's
            number `where`. The first explanation for which the finding has all numbers is used, so those that need more
            numbers come first. If the rest of the name is a number of the finding, this must be neither absent nor false.
        further: additional sentences, each used if the finding has all numbers that it names.
        invariant: the invariant as a formula, its source, and the events that it needs, in Markdown.
        runbook: the meaning of a finding, where to look, its usual causes, and the remedy, in Markdown.
    """

    title: str
    severities: tuple[Severity, ...]
    hint: str
    known_by: KnownBy = "a wrong count"
    groups: Groups = "independent of them"
    level: Level = Level.BASIC
    explanation: str = ""
    explanations: dict[str, str] = {}  # msgspec copies it
    further: tuple[str, ...] = ()
    invariant: str = ""
    runbook: str = ""

    @property
    def severity(self) -> Severity:
        """The worst severity of a finding."""
        return self.severities[0]

    def texts(self, where: str | None) -> dict[str, str]:
        """The explanations for a finding at this place, by the part of their names after the place."""
        if where is None:
            return self.explanations or {"": self.explanation}
        places = {name: name.partition(", ") for name in self.explanations}
        return {behind: self.explanations[name] for name, (place, _, behind) in places.items() if place == where}

    def section(self, rule: str) -> str:
        """The part of docs/rules.md about the rule of this page."""
        about = f"Severity: {', or '.join(self.severities)}. Level: `{self.level}`. Known by {self.known_by}."
        about += f" Several [groups](concepts.md#kv-cache-groups): {self.groups}."
        return f"## `{rule}`\n\n{about}\n\n{self.title}.\n\n{self.invariant}\n\nUsually: {self.hint}\n"


def rule_id(file: str) -> str:
    """The id of a rule by the name of its files, without their suffix."""
    return file.replace("_", "-")


@cache
def files() -> dict[str, Path]:
    """The file of each rule's page, by the rule's id, in alphabetical order."""
    found = {rule_id(path.stem): path for path in Path(__file__).parent.glob("*/*.md")}
    return dict(sorted(found.items()))


@cache
def page(rule: str) -> Page:
    """The page of a rule, by its id.

    Raises:
        KeyError: there is no such rule.
        msgspec.ValidationError: the front matter has other fields than a page.
    """
    _, front, text = files()[rule].read_text(encoding="utf-8").split("---\n", 2)
    invariant, _, runbook = text.partition(_RUNBOOK)
    words = msgspec.yaml.decode(front, type=Page)
    return structs.replace(words, invariant=invariant.strip(), runbook=runbook.strip())


@cache
def every() -> dict[str, Page]:
    """The pages of all rules, by the rule's id."""
    return {rule: page(rule) for rule in files()}
