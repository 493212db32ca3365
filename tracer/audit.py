"""`kvtrail audit`: the rules over trace files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracer import decode
from tracer.detect import Detector
from tracer.findings import Finding, Verdict, by_weight
from tracer.importers.reader import LogReader, readers
from tracer.rules import Rule

SETTLE_EVERY = 10_000
"""Events of a log after which those that wait for earlier ones are entered."""


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        findings: worst severity first, then by time.
        verdicts: how many requests have each verdict.
        checks: how often each rule gave each verdict.
        spans, events, foreign: what was read; `repeated` spans were there twice and count once.
        missing: events that the numbers say are missing.
        unreadable: (file, line, reason) of what could not be read.
        stories: what the files that are logs tell of their requests, in words.
    """

    findings: list[Finding] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    checks: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    spans: int = 0
    events: int = 0
    foreign: int = 0
    repeated: int = 0
    missing: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)

    @property
    def drift(self) -> bool:
        return bool(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "drift": self.drift,
            "findings": [finding.as_dict() for finding in self.findings],
            "requests": {verdict.value: self.verdicts[verdict] for verdict in Verdict},
            "checks": [{"rule": r, "verdict": v.value, "count": n} for (r, v), n in sorted(self.checks.items())],
            "spans": self.spans,
            "events": self.events,
            "foreign": self.foreign,
            "repeated": self.repeated,
            "missing": self.missing,
            "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in self.unreadable],
            "stories": self.stories,
        }


def audit(paths: Iterable[Path], *, rules: Sequence[Rule] | None = None) -> Audit:
    """Judge the spans of all files together, as one history; the order of files and lines does not matter. A file may be
    a server's log.

    With `rules`, only these judge, and verdicts and checks are theirs alone.

    Raises:
        UnusableTrace: a file cannot be read at all; the text names it and the reason.
    """
    result = Audit()
    detector = Detector(rules=rules)
    found: dict[str, Finding] = {}
    seen: set[tuple[str, str]] = set()
    for reader in readers(paths):
        for span in reader.spans():
            result.spans += 1
            if (span.trace_id, span.span_id) in seen:
                result.repeated += 1
                continue
            seen.add((span.trace_id, span.span_id))
            try:
                event = decode.from_span(span)
            except decode.MalformedSpan as malformed:
                result.unreadable.append((str(reader.path), 0, str(malformed)))
                continue
            if event is None:
                result.foreign += 1
                continue
            result.events += 1
            found.update({f.id: f for f in detector.feed([event])})
            if isinstance(reader, LogReader) and result.events % SETTLE_EVERY == 0:
                # A log's requests all wait for their number 0, which never comes: all of it would be held at once.
                found.update({f.id: f for f in detector.settle()})
        if isinstance(reader, LogReader):
            result.stories += reader.stories.digest()
        result.unreadable += [(str(reader.path), number, reason) for number, reason in reader.bad_lines]
    found.update({f.id: f for f in (*detector.settle(), *detector.tick())})
    result.findings = by_weight(found.values())
    result.verdicts.update(detector.verdict(account) for account in detector.ledger.accounts.values())
    result.checks = detector.verdicts
    result.missing = detector.missing
    return result
