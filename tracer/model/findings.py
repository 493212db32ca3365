"""The judgement of a rule about one event, and a finding: data that explains itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from kvtrail.tracer.events.events import Event


class Severity(StrEnum):
    """The cost of a drift, worst first."""

    CRASH = "crash"
    WRONG_OUTPUT = "wrong output"
    BROKEN_CONTRACT = "broken contract"
    """Two components broke the contract between them, and no harm from it is known."""
    HANG = "hang"
    LEAK = "leak"
    WASTED_WORK = "wasted work"
    WRONG_METRICS = "wrong metrics"


WORST_FIRST: dict[str, int] = {severity: rank for rank, severity in enumerate(Severity)}
"""The rank of each severity."""


class Verdict(StrEnum):
    """`ok` needs at least one checked fact. An undecidable judgement is `unknown`, never `drift`."""

    OK = "ok"
    DRIFT = "drift"
    UNKNOWN = "unknown"


OK: Literal[Verdict.OK] = Verdict.OK
"""The most frequent judgement. A module's name is looked up several times faster than a member of an enum."""


class Unknown(StrEnum):
    """A judgement: the reason why the recorded events cannot decide. An operator can act on each reason."""

    LOST = "events were lost"
    NEWER = "another version of kvtrail recorded what this one does not know"
    LATE = "the recorder was running before kvtrail listened"
    LEVEL = "the level of recording is too low"
    UNSEEN = "the call before it was not recorded"
    PROBE = "the connector has no probe that shows it"
    SAMPLED = "only sampled requests are recorded"
    VERSION = "this vLLM does not show it"
    MANY = "the store holds more chunks than kvtrail remembers"
    UNNAMED = "the connector stores chunks without naming them"
    OPEN = "the request has not ended"
    ONE_SIDE = "the other engine of the hand-off has reported nothing of it"
    UNCHECKED = "no rule applied to the request"
    ORDER = "two processes recorded it, and which came first is not known"
    REUSED = "its id was used before, and workers do not say for whom"
    CONTENT = "what was computed under its hash is not known"
    RULE = "a rule failed"


@dataclass(frozen=True, slots=True)
class Drift:
    """A judgement: the invariant is broken. `witness` is the smallest set of events that shows it, in order; the last one
    broke it. By default the finding is about the `connector` of that event; "" means that it is unknown which of a
    MultiConnector's children it is. A drift that has `grown` repeats an earlier one with facts that have become known since.
    The default `severity` is the rule's."""

    numbers: dict[str, Any]
    witness: Sequence[Event]
    healed: bool = False
    connector: str | None = None
    grown: bool = False
    severity: Severity | None = None


Judgement = Literal[Verdict.OK] | Unknown | Drift | tuple[Drift, ...] | None
"""The judgement of one event; None where the rule does not apply. One event may show several drifts."""


def combined(*judgements: Judgement) -> Judgement:
    """The judgement of several checks of one event: all their drifts, or the first other judgement."""
    drifts = tuple(each for each in judgements if isinstance(each, Drift))
    return drifts or next((each for each in judgements if each is not None), None)


@dataclass(slots=True)
class Witness:
    """An event as evidence: enough to find it again, and the numbers that it carried."""

    label: str
    kind: str
    span_id: str
    at_ns: int
    epoch: int
    numbers: dict[str, Any]
    trace_id: str = ""

    def __format__(self, spec: str) -> str:
        """As in explanations: `L1 (12:00:01.250)`, with `epoch` `L1 (12:00:01.250, epoch 0)`, with `time` the time."""
        at = clock(self.at_ns)
        return at if spec == "time" else f"{self.label} ({at}, epoch {self.epoch})" if spec else f"{self.label} ({at})"


@dataclass(slots=True)
class Finding:
    """The record of one drift in one epoch of one request, with all its repetitions."""

    rule: str
    title: str
    severity: Severity
    engine: str
    request: str
    external: str
    trace_id: str
    connector: str
    epoch: int
    first_ns: int
    last_ns: int
    count: int
    healed: int
    """The number of occurrences, out of `count`, that the guard repaired before the scheduler acted on them."""
    numbers: dict[str, Any]
    witness: list[Witness] = field(default_factory=list)
    explanation: str = ""
    hint: str = ""

    @property
    def id(self) -> str:
        """An id that does not depend on restarts or on the order of arrival. It is made of rule, engine, request and epoch,
        and for a rule that judges in several places, of the place."""
        where = (self.numbers["where"],) if "where" in self.numbers else ()
        text = "\0".join((self.rule, self.engine, self.request, str(self.epoch), *where))
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {"id": self.id, **asdict(self)}


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity, worst first, then by time, earliest first."""
    return sorted(findings, key=lambda finding: (WORST_FIRST[finding.severity], finding.first_ns, finding.id))


def witnesses(events: Sequence[Event]) -> list[Witness]:
    """Label the events of a drift: L for a lookup, A for an allocation, each numbered."""
    seen: dict[str, int] = {}
    result = []
    for event in events:
        letter = event.kind.removeprefix("kv.")[0].upper()
        seen[letter] = seen.get(letter, 0) + 1
        label, numbers = f"{letter}{seen[letter]}", event.numbers()
        result.append(Witness(label, event.kind, event.span_id, event.start_ns, event.epoch, numbers, event.trace_id))
    return result


def clock(at_ns: int) -> str:
    """A time of day in UTC: 12:00:01.250."""
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]


def day(at_ns: int) -> str:
    """The date of a moment, in UTC: 2026-01-31."""
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d}"
