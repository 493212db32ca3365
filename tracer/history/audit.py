"""`kvtrail audit`: the rules over trace files."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.offline import OfflineDetector, TooLate
from kvtrail.tracer.history.part import Parts, Recorded
from kvtrail.tracer.history.savings import RecordedSavings, Saved
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.ingest.logs.reader import readers
from kvtrail.tracer.ingest.trace_file import by_time
from kvtrail.tracer.ledger.handoff_sums import Flow
from kvtrail.tracer.liveness.deaths import Death
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.outcome import Impact, described, impact_of, outcome_of
from kvtrail.tracer.model import engines
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict, by_weight
from kvtrail.tracer.model.words import count, some
from kvtrail.tracer.rules.rule import Rule

REMEMBERED_FOREIGN = 100_000
"""Foreign spans remembered, to count one that is there twice once."""
NAMED = 3
"""Engines or requests that a reason names."""
SETTLE_EVERY = 10_000
"""Events of a log after which the missing ones are given up."""
MOST_IN_A_LOG = 20_000
"""Requests of a log that are held at a time."""

T = TypeVar("T", Unknown, tuple[str, Unknown])


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        findings: worst severity first, then by time.
        verdicts: how many requests have each verdict.
        checks: how often each rule gave each verdict.
        spans, events, foreign: what was read; `repeated` spans were read twice and count once.
        unknown_spans, unknown_attributes: what a newer kvtrail wrote and this one does not know, and how many of each name.
        engine_names: the engines' names for people, by id.
        missing: events that the numbers say are missing.
        unreadable: (file, line, reason) of what could not be read.
        deaths: of engines, in the order in which they happened.
        handoffs: what engines have handed over, by the one that gives and the one that takes.
        did: what each finding did, by its id.
        request_outcomes: the outcomes of the requests with findings, by engine and request, in words.
        stories: what the logs among the files say about their requests, in words.
        skipped: files of a folder that are no traces; they are among the `unreadable`.
        lookups, hits: lookups, and those that the connector answered with tokens.
        reasons: how many requests are unknown for each reason.
        unfinished: engine and id of those that had not ended.
        silent, joined_late: engines without an end record, or without their first events.
        probes_off: connectors with a probe that failed and was switched off.
        unjudged: rules that could never decide, by the reason; of a rule with several, the most frequent.
        asked: the rules that were asked for.
        explained: of the requests that were asked about, by engine and id, why their tokens were reused or computed.
        recorded: requests, by engine and id, with only a part read that does not decide by itself: their findings are those
            that their tracer recorded.
        saved: if it was asked for, what each connector of each engine saved; without what is there of single requests only.
    """

    findings: list[Finding] = field(default_factory=list)
    handoffs: list[tuple[tuple[str, str], Flow]] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    spans: int = 0
    events: int = 0
    foreign: int = 0
    repeated: int = 0
    unknown_spans: Counter[str] = field(default_factory=Counter)
    unknown_attributes: Counter[str] = field(default_factory=Counter)
    engine_names: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    did: dict[str, Impact] = field(default_factory=dict)
    request_outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    skipped: int = 0
    lookups: int = 0
    hits: int = 0
    reasons: Counter[Unknown] = field(default_factory=Counter)
    unfinished: Sequence[tuple[str, str]] = ()
    silent: Sequence[str] = ()
    joined_late: Sequence[str] = ()
    probes_off: Sequence[str] = ()
    unjudged: dict[Unknown, list[str]] = field(default_factory=dict)
    asked: Sequence[str] = ()
    explained: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    recorded: Sequence[tuple[str, str]] = ()
    saved: Sequence[Saved] = ()

    def engine_name(self, engine: str) -> str:
        """The engine's name for people."""
        return self.engine_names.get(engine, engine)

    @property
    def drift(self) -> bool:
        return bool(self.findings)

    @property
    def inconclusive(self) -> list[str]:
        """Why no drift proves nothing, and what to do about it, in sentences; empty if it proves something."""
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
        if damaged := len(self.unreadable) - self.skipped:
            reasons.append(f"Unreadable lines or spans: {count(damaged)}. Copy the files again, or record again.")
        if self.unknown_spans:
            reasons.append("A newer kvtrail wrote spans that this one cannot judge: install that version.")
        if self.joined_late:
            reasons.append(
                f"The first events of {_some(self._named(self.joined_late))} are missing: add the earlier files."
            )
        if self.silent:
            reasons.append(
                f"No end record came from {_some(self._named(self.silent))}: it was killed, or it hangs, or still runs. Look"
                " at its end, or audit once it has shut down."
            )
        if self.unfinished:
            requests = _some([request for _, request in self.unfinished])
            reasons.append(
                f"Requests that had not ended: {requests}. kvtrail replay --request shows what each waited for."
            )
        if self.probes_off:
            reasons.append(
                f"The probe of {_some(self.probes_off)} failed and was switched off: the engine's log says why."
            )
        return reasons

    def _named(self, engines: Sequence[str]) -> list[str]:
        return [self.engine_name(engine) for engine in engines]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "drift": self.drift,
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
            "spans": self.spans,
            "events": self.events,
            "lookups": self.lookups,
            "hits": self.hits,
            "foreign": self.foreign,
            "repeated": self.repeated,
            "missing": self.missing,
            "unknown_spans": dict(sorted(self.unknown_spans.items())),
            "unknown_attributes": dict(sorted(self.unknown_attributes.items())),
            "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in self.unreadable],
            "stories": self.stories,
            "recorded": [{"engine": engine, "request": request} for engine, request in self.recorded],
        }


def audit(
    paths: Sequence[Path],
    *,
    rules: Sequence[Rule] | None = None,
    why: str | None = None,
    savings: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Audit:
    """Judge the spans of all files together, as one history; the order of files and lines does not matter. A file may be
    a server's log; a folder means the trace files in it.

    With `rules`, only these judge. `why` is a request to give the causes of; with `savings`, what was saved is summed up
    too. `on_bytes` is called with how many bytes of the files were read since the last call.

    Raises:
        UnusableTrace: a file cannot be read at all; the text names it and the reason.
    """
    with _uncollected():
        try:
            return _audit(paths, rules, why, savings, on_bytes, patience_ns=GRACE_NS)
        except TooLate:
            return _audit(paths, rules, why, savings, on_bytes, patience_ns=None)


def audit_stored(
    read: Callable[[], Iterable[Sequence[Span]]],
    place: str,
    *,
    rules: Sequence[Rule] | None = None,
    savings: bool = False,
) -> Audit:
    """Judge stored spans as one history, which `read` gives from its beginning, about in the order of time. `place` names
    where they are stored."""
    with _uncollected():
        try:
            return _audit_stored(read(), place, rules, savings, patience_ns=GRACE_NS)
        except TooLate:
            return _audit_stored(read(), place, rules, savings, patience_ns=None)


def _named_cause(cause: Finding | None) -> dict[str, str] | None:
    """The finding that a death is attributed to, as JSON-ready data; --rule may leave it out of the findings."""
    return None if cause is None else {name: getattr(cause, name) for name in ("id", "rule", "title", "request")}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's collector of reference cycles: a history has none, and the collector would search it again and
    again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _audit(
    paths: Sequence[Path],
    rules: Sequence[Rule] | None,
    why: str | None,
    savings: bool,
    on_bytes: Callable[[int], None] | None,
    *,
    patience_ns: int | None,
) -> Audit:
    traces, logs, skipped = readers(paths, on_bytes=on_bytes)
    # The numbers of a log include events that no line records.
    sums = RecordedSavings() if savings else None
    detector = OfflineDetector(rules=rules, patience_ns=None if logs else patience_ns, why=why, savings=sums)
    parts = Parts(rules, why)
    result = Audit()
    foreign: dict[tuple[str, str], None] = {}
    resources: dict[Any, Mapping[str, Any]] = {}
    for reader, batch in by_time(traces):
        here = {resource.get(semconv.RECORDER_ID.key): resource for resource in batch.resources}
        resources |= here
        detector.feed(parts.take(batch.events, here))
        _count(batch, reader.path, result, foreign)
    for trace in traces:
        result.unreadable += [(str(trace.path), number, reason) for number, reason in trace.bad_lines]
    for log in logs:
        spans = log.spans()
        while held := list(islice(spans, SETTLE_EVERY)):
            batch = Decoded()
            for span in held:
                batch.add(span)
            detector.feed(batch.events)
            detector.settle()  # every request of a log waits for its number 0, which would hold all of the log in memory
            detector.forget_idle(log.engine, MOST_IN_A_LOG)
            _count(batch, log.path, result, foreign)
        result.stories += [*log.stories.digest(), log.summary]
        result.unreadable += [(str(log.path), number, reason) for number, reason in log.bad_lines]
    result.unreadable += skipped
    result.skipped = len(skipped)
    return _concluded(result, detector, resources, rules, parts, sums)


def _audit_stored(
    lists: Iterable[Sequence[Span]],
    place: str,
    rules: Sequence[Rule] | None,
    savings: bool,
    *,
    patience_ns: int | None,
) -> Audit:
    sums = RecordedSavings() if savings else None
    detector = OfflineDetector(rules=rules, patience_ns=patience_ns, savings=sums)
    result = Audit()
    foreign: dict[tuple[str, str], None] = {}
    resources: dict[Any, Mapping[str, Any]] = {}
    for spans in lists:
        batch = Decoded()
        for span in spans:
            resources[span.resource.get(semconv.RECORDER_ID.key)] = span.resource
            batch.add(span)
        detector.feed(batch.events)
        _count(batch, Path(place), result, foreign)
    return _concluded(result, detector, resources, rules, Parts(rules), sums)


def _concluded(
    result: Audit,
    detector: OfflineDetector,
    resources: Mapping[Any, Mapping[str, Any]],
    rules: Sequence[Rule] | None,
    parts: Parts,
    savings: RecordedSavings | None,
) -> Audit:
    """The result, with the detector's conclusions after the last event."""
    detector.close()
    result.engine_names = engines.names(engines.descriptions(resources.values()))
    result.findings = list(detector.findings.values())
    result.deaths = detector.deaths
    result.handoffs = detector.handoffs
    accounts = detector.outcomes
    result.verdicts, result.checks, result.missing = detector.verdicts, detector.checks, detector.missing
    result.events = detector.events
    result.repeated += detector.repeated
    result.lookups, result.hits = detector.lookups, detector.hits
    result.reasons, result.unfinished = detector.reasons, sorted(detector.unfinished)
    result.silent, result.joined_late, probes_off = detector.silent, detector.joined_late, detector.probes_off
    undecided = detector.undecided
    result.explained = detector.explained
    result.saved = savings.saved(resources.values()) if savings else ()
    for part, recorded in parts.closed():
        result.events += part.events
        result.repeated += part.repeated
        result.lookups, result.hits = result.lookups + part.lookups, result.hits + part.hits
        result.checks, undecided = result.checks + part.checks, undecided + part.undecided
        result.explained = {**result.explained, **part.explained}
        accounts |= part.outcomes
        probes_off |= part.probes_off
        _enter_part(result, part, recorded)
    result.findings = by_weight({finding.id: finding for finding in result.findings}.values())
    result.did = dict(_did(result, accounts))
    result.request_outcomes = {key: described(*account) for key, account in accounts.items()}
    result.probes_off = sorted(probes_off)
    result.unjudged = _unjudged(undecided, result.checks)
    result.asked = [rule.id for rule in rules or ()]
    return result


def _enter_part(result: Audit, part: OfflineDetector, recorded: Recorded | None) -> None:
    """Add the verdict of a part. It says nothing about the engine: neither whether it ended, nor whether it was
    recorded from its start."""
    if recorded is None:
        result.findings += part.findings.values()
        result.verdicts += part.verdicts
        result.reasons += part.reasons
        result.missing += part.missing
        result.unfinished = sorted((*result.unfinished, *part.unfinished))
        return
    assert part.about is not None
    result.findings += recorded.findings
    result.verdicts[recorded.verdict] += 1
    result.missing += recorded.missing
    result.recorded = [*result.recorded, part.about]
    if recorded.unknown is not None:
        result.reasons[recorded.unknown] += 1
        if recorded.unknown is Unknown.OPEN:
            result.unfinished = sorted((*result.unfinished, part.about))


def _did(
    result: Audit, accounts: Mapping[RequestKey, tuple[str, str | None, str | None]]
) -> Iterator[tuple[str, Impact]]:
    """The impact of each finding, by its id. `accounts` has how the requests with findings ended."""
    died = {death.engine for death in result.deaths}
    causes = {death.cause.id for death in result.deaths if death.cause is not None}
    for finding in result.findings:
        account = accounts.get((finding.engine, finding.request))
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
    """The most frequent first; the same in whichever order they were counted."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _some(names: Sequence[str]) -> str:
    """The first few of these names."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {count(more)} more" if more > 0 else "")


def _count(batch: Decoded, path: Path, result: Audit, foreign: dict[tuple[str, str], None]) -> None:
    """Count what was decoded. `foreign` are the last foreign spans, so that a repeated one counts once."""
    unknown = sum(batch.unknown_spans.values()) - batch.stand_ins
    result.spans += len(batch.events) + len(batch.foreign) + len(batch.malformed) + unknown
    result.unknown_spans.update(batch.unknown_spans)
    result.unknown_attributes.update(batch.unknown_attributes)
    result.unreadable += [(str(path), 0, str(malformed)) for malformed in batch.malformed]
    for span in batch.foreign:
        key = (span.trace_id, span.span_id)
        if key in foreign:
            result.repeated += 1
            continue
        result.foreign += 1
        foreign[key] = None
        if len(foreign) > REMEMBERED_FOREIGN:
            del foreign[next(iter(foreign))]
