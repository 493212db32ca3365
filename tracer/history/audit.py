"""`kvtrail audit`: the rules over trace files."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.offline import OfflineDetector, Tally, TooLate
from kvtrail.tracer.history.savings import RecordedSavings, Saved
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.ingest.logs.reader import LogReader, readers
from kvtrail.tracer.ingest.trace_file import by_time
from kvtrail.tracer.ledger.handoff_sums import Flow
from kvtrail.tracer.liveness.deaths import Death
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.request_outcome import described, impact_of, outcome_of
from kvtrail.tracer.model import engines
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict, by_weight
from kvtrail.tracer.model.outcomes import Impact
from kvtrail.tracer.model.words import count, first_of, some
from kvtrail.tracer.rules.rule import Rule

SETTLE_EVERY = 10_000
"""Number of log events after which missing ones are given up."""
MOST_IN_A_LOG = 20_000
"""Maximum number of requests of a log in memory."""

T = TypeVar("T", Unknown, tuple[str, Unknown])


@dataclass(slots=True, kw_only=True)
class Audit(Tally):
    """The result of an audit.

    Attributes:
        findings: worst severity first, then by time.
        checks: number of verdicts by rule and verdict.
        foreign: number of spans that no kvtrail recorder wrote.
        unknown_spans, unknown_attributes: names that only a newer kvtrail knows, with their counts.
        engine_names: the engines' display names, by id.
        missing: number of missing events, from gaps in the numbers.
        unreadable: (file, line, reason) of unreadable lines and spans.
        deaths: deaths of engines, in order.
        handoffs: hand-offs by the engine that gives and the engine that takes.
        did: the impact of each finding, by its id.
        request_outcomes: the outcomes of the requests with findings, by engine and request, in words.
        logs: a sentence for each log file with its number of read lines.
        silent, joined_late: engines without an end record, or without their first events.
        unjudged: rules that could never decide, by their most frequent reason.
        asked: the selected rules.
        saved: if requested, the savings of each connector of each engine, without recordings of single requests.
    """

    findings: list[Finding] = field(default_factory=list)
    handoffs: list[tuple[tuple[str, str], Flow]] = field(default_factory=list)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    foreign: int = 0
    unknown_spans: Counter[str] = field(default_factory=Counter)
    unknown_attributes: Counter[str] = field(default_factory=Counter)
    engine_names: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    did: dict[str, Impact] = field(default_factory=dict)
    request_outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    silent: Sequence[str] = ()
    joined_late: Sequence[str] = ()
    unjudged: dict[Unknown, list[str]] = field(default_factory=dict)
    asked: Sequence[str] = ()
    saved: Sequence[Saved] = ()

    def engine_name(self, engine: str) -> str:
        """The engine's display name."""
        return self.engine_names.get(engine, engine)

    @property
    def inconclusive(self) -> list[str]:
        """Why the absence of drift is inconclusive, and what to do, in sentences; empty if it is conclusive."""
        if not self.events:
            return [
                f"It holds no kvtrail spans ({some(self.foreign, 'foreign span')}): serve the connector as Traced<X>, and"
                " check that its spans are sent here."
            ]
        reasons = [
            f"{self.engine_name(death.engine)} died, and no finding explains it: look at the end of its log."
            for death in self.deaths
        ]
        if not self.lookups:
            reasons.append(
                "No lookup was recorded: check that requests reach the engine, and that the scheduler's process is traced."
            )
        elif not self.hits:
            missed = (
                "The only lookup did not hit" if self.lookups == 1 else f"None of {count(self.lookups)} lookups hit"
            )
            reasons.append(
                f"{missed}, so no load was judged, nor anything after one: send prompts that"
                " the connector's store holds, and vLLM's own cache does not."
            )
        if judged := [
            rule for rule in self.asked if not any(self.checks[rule, v] for v in (Verdict.OK, Verdict.DRIFT))
        ]:
            reasons.append(f"Asked for, and never decided: {', '.join(judged)}. --explain says what a rule needs.")
        if self.reasons and not self.verdicts[Verdict.OK]:
            why = ", ".join(f"{count(number)} because {reason}" for reason, number in _ranked(self.reasons))
            reasons.append(f"No request could be judged: {why}.")
        if self.missing:
            reasons.append(f"Missing events: {count(self.missing)}. Add the files that hold them, or record again.")
        if damaged := len(self.unreadable):
            reasons.append(f"Unreadable lines or spans: {count(damaged)}. Copy the files again, or record again.")
        if self.unknown_spans:
            reasons.append("A newer kvtrail wrote spans that this one cannot judge: install that version.")
        if self.joined_late:
            reasons.append(
                f"The first events of {first_of(self._named(self.joined_late))} are missing: add the earlier files."
            )
        if self.silent:
            reasons.append(
                f"No end record came from {first_of(self._named(self.silent))}: it was killed, or it hangs, or still runs."
                " Look at its end, or audit once it has shut down."
            )
        if self.unfinished:
            requests = first_of([request for _, request in self.unfinished])
            reasons.append(
                f"Requests that had not ended: {requests}. kvtrail replay --request shows what each waited for."
            )
        if self.probes_off:
            reasons.append(
                f"The probe of {first_of(sorted(self.probes_off))} failed and was switched off: the engine's log says why."
            )
        return reasons

    def _named(self, engines: Sequence[str]) -> list[str]:
        return [self.engine_name(engine) for engine in engines]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "drift": bool(self.findings),
            "inconclusive": self.inconclusive,
            "unjudged": {why.value: rules for why, rules in self.unjudged.items()},
            "deaths": [
                {
                    "engine": death.engine,
                    "engine_name": self.engine_name(death.engine),
                    "at_ns": death.at_ns,
                    "ended_by": death.ended_by,
                    "lost": list(death.lost),
                    "cause": _named_cause(death.cause),
                }
                for death in self.deaths
            ],
            "handoffs": [
                {
                    "giver": giver,
                    "giver_name": self.engine_name(giver),
                    "taker": taker or None,
                    "taker_name": self.engine_name(taker) or None,
                    **flow.as_dict(),
                }
                for (giver, taker), flow in self.handoffs
            ],
            "findings": [
                {
                    **finding.as_dict(),
                    "engine_name": self.engine_name(finding.engine),
                    "did": self.did.get(finding.id),
                    "became": self.request_outcomes.get((finding.engine, finding.request), ""),
                }
                for finding in self.findings
            ],
            "requests": {verdict.value: self.verdicts[verdict] for verdict in Verdict},
            "checks": [{"rule": r, "verdict": v.value, "count": n} for (r, v), n in sorted(self.checks.items())],
            "events": self.events,
            "lookups": self.lookups,
            "hits": self.hits,
            "foreign": self.foreign,
            "repeated": self.repeated,
            "missing": self.missing,
            "unknown_spans": dict(sorted(self.unknown_spans.items())),
            "unknown_attributes": dict(sorted(self.unknown_attributes.items())),
            "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in self.unreadable],
            "logs": self.logs,
        }


def audit(
    paths: Sequence[Path],
    *,
    rules: Sequence[Rule] | None = None,
    why: str | None = None,
    savings: bool = False,
) -> Audit:
    """Judge the spans of all files together, as one history; the order of files and lines does not matter. A file may be a
    server's log.

    With `rules`, only these rules judge. `why` selects a request for its causes; `savings` also sums up savings.

    Raises:
        UnusableTrace: a file cannot be read at all; the text names it and the reason.
    """

    def judged(patience_ns: int | None) -> Audit:
        traces, logs = readers(paths)
        # The event numbers of a log include events without a line.
        auditor = _Auditor(rules, why, savings, None if logs else patience_ns)
        for reader, batch in by_time(traces):
            auditor.enter(batch, reader.path, batch.resources)
        for trace in traces:
            auditor.result.unreadable += [(str(trace.path), number, reason) for number, reason in trace.bad_lines]
        for log in logs:
            auditor.enter_log(log)
        return auditor.concluded()

    return _patiently(judged)


def audit_stored(
    read: Callable[[], Iterable[Sequence[Span]]],
    place: str,
    *,
    rules: Sequence[Rule] | None = None,
    savings: bool = False,
) -> Audit:
    """Judge stored spans as one history. `read` returns them from the beginning, approximately in order of time. `place`
    names the store."""

    def judged(patience_ns: int | None) -> Audit:
        auditor = _Auditor(rules, None, savings, patience_ns)
        for spans in read():
            auditor.enter(_decoded(spans), Path(place), [span.resource for span in spans])
        return auditor.concluded()

    return _patiently(judged)


def _patiently(judged: Callable[[int | None], Audit]) -> Audit:
    """An audit that waits some time for missing events; if that was too short, a second one that holds all events in memory.

    Python's garbage collector is paused: a history has no reference cycles, and the collector would search it
    repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return judged(GRACE_NS)
    except TooLate:
        return judged(None)
    finally:
        if enabled:
            gc.enable()


def _decoded(spans: Iterable[Span]) -> Decoded:
    batch = Decoded()
    for span in spans:
        batch.add(span)
    return batch


def _named_cause(cause: Finding | None) -> dict[str, str] | None:
    """The finding that a death is attributed to, as JSON-ready data; --rule may leave it out of the findings."""
    return None if cause is None else {name: getattr(cause, name) for name in ("id", "rule", "title", "request")}


class _Auditor:
    """Judges and counts events while they are read.

    Attributes:
        result: the result so far.
    """

    def __init__(self, rules: Sequence[Rule] | None, why: str | None, savings: bool, patience_ns: int | None) -> None:
        self.result = Audit(asked=[rule.id for rule in rules or ()])
        self._savings = RecordedSavings() if savings else None
        self._detector = OfflineDetector(
            rules=rules, patience_ns=patience_ns, why=why, savings=self._savings, tally=self.result
        )
        self._resources: dict[Any, Mapping[str, Any]] = {}
        """By recorder."""

    def enter(self, batch: Decoded, path: Path, resources: Iterable[Mapping[str, Any]]) -> None:
        """Judge decoded spans of these recorders."""
        self._resources |= {resource.get(semconv.RECORDER_ID.key): resource for resource in resources}
        self._detector.feed(batch.events)
        result = self.result
        result.unknown_spans.update(batch.unknown_spans)
        result.unknown_attributes.update(batch.unknown_attributes)
        result.unreadable += [(str(path), 0, str(malformed)) for malformed in batch.malformed]
        result.foreign += len(batch.foreign)

    def enter_log(self, log: LogReader) -> None:
        """Judge the events of a log."""
        spans = log.spans()
        while held := list(islice(spans, SETTLE_EVERY)):
            self.enter(_decoded(held), log.path, ())
            # Every request of a log would wait for its number 0, which would keep the whole log in memory.
            self._detector.settle()
            self._detector.forget_idle(log.engine, MOST_IN_A_LOG)
        self.result.logs.append(log.summary)
        self.result.unreadable += [(str(log.path), number, reason) for number, reason in log.bad_lines]

    def concluded(self) -> Audit:
        """The result, after the last event."""
        result, detector = self.result, self._detector
        detector.close()
        result.engine_names = engines.names(engines.descriptions(self._resources.values()))
        result.deaths, result.handoffs = detector.deaths, detector.handoffs
        result.silent, result.joined_late = detector.silent, detector.joined_late
        result.saved = self._savings.saved(self._resources.values()) if self._savings else ()
        result.checks, result.missing = detector.detector.verdicts, detector.detector.missing
        result.findings = by_weight(detector.findings.values())
        result.unfinished.sort()
        result.did = dict(_did(result))
        result.request_outcomes = {key: described(*account) for key, account in result.outcomes.items()}
        result.unjudged = _unjudged(detector.detector.unknown, result.checks)
        return result


def _did(result: Audit) -> Iterator[tuple[str, Impact]]:
    """The impact of each finding, by its id."""
    died = {death.engine for death in result.deaths}
    causes = {death.cause.id for death in result.deaths if death.cause is not None}
    for finding in result.findings:
        account = result.outcomes.get((finding.engine, finding.request))
        state = EngineState.DIED if finding.engine in died else EngineState.RUNNING
        outcome = None if account is None else outcome_of(account[0], account[1], state)
        is_cause = finding.id in causes
        yield (
            finding.id,
            impact_of(
                outcome,
                rule=finding.rule,
                severity=finding.severity,
                healed=finding.healed,
                count=finding.count,
                is_cause=is_cause,
            ),
        )


def _unjudged(
    undecided: Counter[tuple[str, Unknown]], checks: Counter[tuple[str, Verdict]]
) -> dict[Unknown, list[str]]:
    """The rules that could never decide, by their most frequent reason."""
    unjudged: dict[Unknown, list[str]] = {}
    seen = set()
    for (rule, why), _ in _ranked(undecided):
        if rule not in seen and not checks[rule, Verdict.OK] and not checks[rule, Verdict.DRIFT]:
            unjudged.setdefault(why, []).append(rule)
        seen.add(rule)
    return {why: sorted(rules) for why, rules in unjudged.items()}


def _ranked(counts: Counter[T]) -> list[tuple[T, int]]:
    """The most frequent first, independent of the order of counting."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
