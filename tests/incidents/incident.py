"""The form in which incidents and their look-alikes are written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from history import BLOCK_SIZE, history, judge

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.rules.rule import Rule


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A history of events, in the language of `history`.

    Attributes:
        of: its class (`classes.py`).
        text: the history; a `#` begins a comment, for example about numbers that are not the thread's.
        connector: the connector's name in the events.
        later_s: how long after the last event the rules with a deadline are applied, in seconds.
        cache_identity: of all engines' caches, where bytes are comparable.
        groups: the engine's KV cache groups, where there are several: `full 32, window 32 128`.
        capabilities: what the recorder declares of the connector; if nothing, it is that of an older trace.
    """

    of: str
    text: str
    connector: str = "Connector"
    chunk: int = 256
    block: int = BLOCK_SIZE
    later_s: float = 0.0
    cache_identity: str | None = None
    groups: str | None = None
    capabilities: str | None = None

    def events(self) -> list[Event]:
        """The history's events."""
        return history(
            self.text,
            connector=self.connector,
            chunk=self.chunk,
            block=self.block,
            cache_identity=self.cache_identity,
            groups=self.groups,
            capabilities=self.capabilities,
        )

    def judged(self, rules: Sequence[Rule] | None = None) -> Detector:
        """The detector after these events, with these rules or with all."""
        return judge(self.events(), later_s=self.later_s, rules=rules)


@dataclass(frozen=True, kw_only=True)
class Incident(Scenario):
    """A public incident.

    Attributes:
        id: project and number of the thread.
        rule: the rule that finds it; None if the recorded events cannot decide it, or there is nothing to find.
        numbers: the finding's.
        says: a key phrase of the finding's explanation.
        also: other rules that rightly fire.
        why: for an incident without a rule, why it has none.
        gap: or the events that would show it, which no recorder and no imported log reports.
    """

    id: str
    url: str
    rule: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    also: tuple[str, ...] = ()
    why: str = ""
    gap: str = ""


@dataclass(frozen=True, kw_only=True)
class Holdout(Incident):
    """A public incident that was not at hand: its rule is the one that was expected to find it.

    Attributes:
        area: what it is about: pairs of engines, KV cache groups, or others; empty where that was not noted.
        shown: whether a recorder or an imported log of today shows these events; if not, they are what a connector with a
            fuller probe would show.
        uncovered: for an incident without a rule, what its events show and no rule looks at.
    """

    area: str = ""
    shown: bool = True
    uncovered: str = ""


@dataclass(frozen=True, kw_only=True)
class LookAlike(Scenario):
    """A history that resembles a drift and is legal.

    Attributes:
        rule: the rule that might wrongly fire.
        what: why it is legal, in a few words.
    """

    rule: str
    what: str


def lmcache(number: int, kind: str = "issues") -> str:
    return f"https://github.com/LMCache/LMCache/{kind}/{number}"


def vllm(number: int, kind: str = "issues") -> str:
    return f"https://github.com/vllm-project/vllm/{kind}/{number}"


def sglang(number: int, kind: str = "issues") -> str:
    return f"https://github.com/sgl-project/sglang/{kind}/{number}"
