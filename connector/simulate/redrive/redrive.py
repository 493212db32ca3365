"""Drives a recorded history again on vLLM's real scheduler, and measures how closely the run follows the recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.recorded import RecordedRequest
from kvtrail.connector.simulate.redrive.workload import Workload, begun, workload_of
from kvtrail.connector.simulate.run import Played, play
from kvtrail.tracer.events.events import Event, Lookup
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.model.findings import Finding


class LookupFacts(NamedTuple):
    """What a lookup was asked and answered: the facts that are compared. `answer` is the connector's own."""

    epoch: int
    total: int
    computed: int
    matched: int | None
    answer: int | None
    is_async: bool
    cached: bool | None

    @classmethod
    def of(cls, lookup: Lookup) -> LookupFacts:
        return cls(*(getattr(lookup, name) for name in cls._fields))

    def __str__(self) -> str:
        matched = "" if self.matched is None else f", {self.matched} matched"
        how = (", asynchronously" if self.is_async else "") + (", from memory" if self.cached else "")
        answer = "'ask me later'" if self.answer is None else f"{self.answer}"
        return f"{self.computed} of {self.total} computed in epoch {self.epoch}{matched}, answered {answer}{how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first lookup of a request that differs.

    Attributes:
        request: its id in the scenario.
        lookup: the number of the lookup, from 0.
        recorded, driven: of the two runs; None where one has no such lookup.
    """

    request: str
    lookup: int
    recorded: LookupFacts | None
    driven: LookupFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """The run beside the recording.

    Attributes:
        lookups: recorded lookups; `same_lookups` of them have the same facts at the same place of their request.
        driven_lookups: lookups of the run.
        preemptions, driven_preemptions: of all requests.
        hits, driven_hits: external tokens that lookups answered; only the last answer before each admission counts.
        divergence: the first one, by the recording's time; None if everything is the same.
        findings, driven_findings: (rule, request), of the recording and of the run.
    """

    lookups: int
    same_lookups: int
    driven_lookups: int
    preemptions: int
    driven_preemptions: int
    hits: int
    driven_hits: int
    divergence: Divergence | None
    findings: tuple[tuple[str, str], ...]
    driven_findings: tuple[tuple[str, str], ...]

    @property
    def same_findings(self) -> tuple[tuple[str, str], ...]:
        """The findings of both, for the same request."""
        return tuple(each for each in self.findings if each in self.driven_findings)

    @property
    def same_rules(self) -> tuple[str, ...]:
        """The rules with findings in both, even if for another request."""
        return tuple(sorted({rule for rule, _ in self.findings} & {rule for rule, _ in self.driven_findings}))


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """The result of a re-drive.

    Attributes:
        connector: its name.
        workload: the scenario, and what had to be guessed of the recording.
        played: the run.
        closeness: the run beside the recording.
    """

    connector: str
    workload: Workload
    played: Played
    closeness: Closeness


def redrive(
    history: History,
    *,
    connector: str | None = None,
    config: Mapping[str, Any] | None = None,
    recorder: str | None = None,
    whole_engine: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Redriven:
    """Make a scenario of a history and play it.

    Args:
        connector: a name that vLLM knows, `module:Class`, or `Faulty:<fault>:<connector>`; by default the recorded one.
        config: its `kv_connector_extra_config`; by default the recorded numbers.
        recorder: one of several in the history, or its engine.
        whole_engine: run the CPU engine, with a model and workers, instead of the bare scheduler.
        progress: called with the steps so far, and the step in which the last request arrives; the run ends some time after.

    Raises:
        NotDrivable: the history lacks what is needed.
        Unbuildable: vLLM refuses the settings or the connector.
    """
    workload = workload_of(history, recorder=recorder)
    name = connector or workload.connector
    transfer = configuration(name, workload.settings if config is None else config)
    last = max((each.at_step for each in workload.scenario.arrivals), default=0)
    played = play(workload.scenario, transfer, whole_engine=whole_engine, on_step=lambda step: progress(step, last))
    recorded = list(findings_of(history.events).values())
    return Redriven(
        connector=name,
        workload=workload,
        played=played,
        closeness=compare(workload.requests, recorded, played.events, played.findings),
    )


def compare(
    recorded: Mapping[str, RecordedRequest],
    findings: Sequence[Finding],
    driven: Sequence[Event],
    driven_findings: Sequence[Finding],
) -> Closeness:
    """Compare a run with its recording."""
    first_id = next((e.connector_id for e in driven if isinstance(e, Lookup)), None)
    # Only the first child of a MultiConnector is compared.
    now = begun([e for e in driven if not isinstance(e, Lookup) or e.connector_id == first_id])
    divergences: list[tuple[int, Divergence]] = []
    same = 0
    for name, request in recorded.items():
        lookups = now[name].lookups if name in now else []
        diverged = False
        for number, (one, other) in enumerate(zip_longest(request.lookups, lookups)):
            then = None if one is None else LookupFacts.of(one)
            again = None if other is None else LookupFacts.of(other)
            if then == again:
                same += 1
            elif one is None and request.end is None:
                break  # the recording ends before the request does
            elif not diverged:
                diverged = True
                at = one or (request.lookups[-1] if request.lookups else request.events[0])
                divergence = Divergence(request=name, lookup=number, recorded=then, driven=again)
                divergences.append((at.start_ns, divergence))
    return Closeness(
        lookups=sum(len(request.lookups) for request in recorded.values()),
        same_lookups=same,
        driven_lookups=sum(len(request.lookups) for request in now.values()),
        preemptions=sum(len(request.preemptions) for request in recorded.values()),
        driven_preemptions=sum(len(request.preemptions) for request in now.values()),
        hits=sum(_hits(request) for request in recorded.values()),
        driven_hits=sum(_hits(request) for request in now.values()),
        divergence=min(divergences, key=lambda pair: pair[0])[1] if divergences else None,
        findings=_named(findings),
        driven_findings=_named(driven_findings),
    )


def _hits(request: RecordedRequest) -> int:
    last = {lookup.epoch: lookup.answer or 0 for lookup in request.lookups}
    return sum(last.values())


def _named(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((finding.rule, finding.request) for finding in findings))
