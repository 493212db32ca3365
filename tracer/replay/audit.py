"""`kvtrail audit`: the rules over trace files."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.detect.offline import OfflineDetector, TooLate
from kvtrail.tracer.detect.rules import Rule
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.ingest.logs.reader import readers
from kvtrail.tracer.ingest.trace_file import by_time
from kvtrail.tracer.model.findings import Finding, Verdict, by_weight

REMEMBERED_FOREIGN = 100_000
"""Foreign spans remembered, to count one that is there twice once."""
SETTLE_EVERY = 10_000
"""Events of a log after which the missing ones are given up."""


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        findings: worst severity first, then by time.
        verdicts: how many requests have each verdict.
        checks: how often each rule gave each verdict.
        spans, events, foreign: what was read; `repeated` spans were read twice and count once.
        unknown_spans, unknown_attributes: what a newer kvtrail wrote and this one does not know, by name.
        missing: events that the numbers say are missing.
        unreadable: (file, line, reason) of what could not be read.
        became: what became of the requests with findings, by engine and request, in words.
        stories: what the logs among the files say about their requests, in words.
    """

    findings: list[Finding] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    spans: int = 0
    events: int = 0
    foreign: int = 0
    repeated: int = 0
    unknown_spans: Counter[str] = field(default_factory=Counter)
    unknown_attributes: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    became: dict[tuple[str, str], str] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)

    @property
    def drift(self) -> bool:
        return bool(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "drift": self.drift,
            "findings": [
                {**finding.as_dict(), "became": self.became.get((finding.engine, finding.request), "")}
                for finding in self.findings
            ],
            "requests": {verdict.value: self.verdicts[verdict] for verdict in Verdict},
            "checks": [{"rule": r, "verdict": v.value, "count": n} for (r, v), n in sorted(self.checks.items())],
            "spans": self.spans,
            "events": self.events,
            "foreign": self.foreign,
            "repeated": self.repeated,
            "missing": self.missing,
            "unknown_spans": dict(sorted(self.unknown_spans.items())),
            "unknown_attributes": dict(sorted(self.unknown_attributes.items())),
            "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in self.unreadable],
            "stories": self.stories,
        }


def audit(
    paths: Sequence[Path], *, rules: Sequence[Rule] | None = None, on_bytes: Callable[[int], None] | None = None
) -> Audit:
    """Judge the spans of all files together, as one history; the order of files and lines does not matter. A file may be
    a server's log; a folder means the trace files in it.

    With `rules`, only these judge. `on_bytes` is called with how many bytes of the files were read since the last
    call.

    Raises:
        UnusableTrace: a file cannot be read at all; the text names it and the reason.
    """
    with _uncollected():
        try:
            return _audit(paths, rules, on_bytes, patience_ns=GRACE_NS)
        except TooLate:
            return _audit(paths, rules, on_bytes, patience_ns=None)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's collector of reference cycles: a history has none, and the collector would search it again and again."""
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
    on_bytes: Callable[[int], None] | None,
    *,
    patience_ns: int | None,
) -> Audit:
    traces, logs, skipped = readers(paths, on_bytes=on_bytes)
    # The numbers of a log include events that no line records.
    detector = OfflineDetector(rules=rules, patience_ns=None if logs else patience_ns)
    result = Audit()
    foreign: dict[tuple[str, str], None] = {}
    for reader, batch in by_time(traces):
        detector.feed(batch.events)
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
            _count(batch, log.path, result, foreign)
        result.stories += log.stories.digest()
        result.unreadable += [(str(log.path), number, reason) for number, reason in log.bad_lines]
    detector.close()
    result.findings = by_weight(detector.findings.values())
    result.became = detector.became
    result.verdicts, result.checks, result.missing = detector.verdicts, detector.checks, detector.missing
    result.events = detector.events
    result.repeated += detector.repeated
    result.unreadable += skipped
    return result


def _count(batch: Decoded, path: Path, result: Audit, foreign: dict[tuple[str, str], None]) -> None:
    """Count what was decoded. `foreign` are the last foreign spans, so that a repeated one counts once."""
    unknown = sum(batch.unknown_spans.values())
    result.spans += len(batch.events) + len(batch.foreign) + len(batch.malformed) + unknown
    result.unknown_spans.update(batch.unknown_spans)
    result.unknown_attributes.update(batch.unknown_attributes)
    result.unreadable += [(str(path), 0, reason) for reason in batch.malformed]
    for span in batch.foreign:
        key = (span.trace_id, span.span_id)
        if key in foreign:
            result.repeated += 1
            continue
        result.foreign += 1
        foreign[key] = None
        if len(foreign) > REMEMBERED_FOREIGN:
            del foreign[next(iter(foreign))]
