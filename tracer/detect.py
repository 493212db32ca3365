"""Events in any order -> ledger -> findings, as they come.

Events of one request from one recorder are numbered; they are entered in that order, and one that comes early waits for
those before it. What does not come within the grace time is declared missing: the account is then incomplete, and
rules that lean on its history answer `unknown`. A number seen twice is entered once. So the verdicts do not depend on
the order of arrival, and no loss can make a drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tracer.events import Event, Heartbeat
from tracer.findings import Drift, Finding, Verdict, witnesses
from tracer.ledger import Account, Ledger
from tracer.rules import Rule, all_rules
from tracer.semconv import Kind

REMEMBERED_NUMBERS = 64
"""Numbers per request and recorder of which the span is remembered, to tell a repetition from a contradiction."""
GRACE_NS = 10 * 10**9
"""How long an event may wait for those before it, in nanoseconds of the recorders' clocks."""


@dataclass(slots=True)
class _Stream:
    """The events of one request from one recorder: the next number to enter, and those that came before their turn."""

    expected: int = 0
    recent: dict[int, str] = field(default_factory=dict)
    early: dict[int, Event] = field(default_factory=dict)


class Detector:
    """Judges a stream of events. Pure: no clock, no I/O, not thread-safe."""

    def __init__(self, *, rules: Sequence[Rule] | None = None, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.findings: dict[tuple[str, str], dict[str, Finding]] = {}
        """Findings by request and id, for the requests whose account is still held."""
        self.verdicts: Counter[tuple[str, Verdict]] = Counter()
        """How often each rule gave each verdict."""
        self.changed: list[tuple[str, str]] = []
        """Requests whose account changed without an event of theirs: their engine ended, or their gaps were given up.
        For the caller to read and to clear."""
        self.missing = 0
        """Events that were declared missing."""
        self._streams: dict[tuple[str, str], dict[str, _Stream]] = {}
        self._waiting: dict[tuple[str, str], None] = {}
        self._checked: set[tuple[str, str]] = set()
        self._by_kind: dict[Kind, list[Rule]] = {}
        for rule in all_rules() if rules is None else rules:
            for kind in rule.kinds:
                self._by_kind.setdefault(kind, []).append(rule)

    def feed(self, events: Iterable[Event]) -> list[Finding]:
        """Enter events; returns the findings that are new or were seen again, each once."""
        touched: dict[str, Finding] = {}
        for event in events:
            if event.request is None:
                if isinstance(event, Heartbeat) and event.recorder_closed:
                    self.changed += self.ledger.abandon(event)
                continue
            key = (event.engine, event.request)
            stream = self._streams.setdefault(key, {}).setdefault(event.recorder, _Stream())
            if self._seen(event, stream):
                continue
            if event.request_sequence > stream.expected:
                stream.early[event.request_sequence] = event
                self._waiting[key] = None
            else:
                self._enter(event, touched)
                stream.expected += 1
                if stream.early:
                    self._catch_up(key, stream, touched)
        for key in self.ledger.over_limit():
            self.forget(key)
        return list(touched.values())

    def settle(self, *, before_ns: int | None = None) -> list[Finding]:
        """Give up on what is missing: for all requests, or for those in which an event from before `before_ns` waits."""
        touched: dict[str, Finding] = {}
        for key in list(self._waiting):
            for stream in self._streams.get(key, {}).values():
                if stream.early and (before_ns is None or min(e.end_ns for e in stream.early.values()) < before_ns):
                    self._skip_gaps(key, stream, touched)
                    self.changed.append(key)
            if not any(stream.early for stream in self._streams.get(key, {}).values()):
                del self._waiting[key]
        return list(touched.values())

    def verdict(self, account: Account) -> Verdict:
        """The request's verdict so far."""
        key = (account.engine, account.request)
        if key in self.findings:
            return Verdict.DRIFT
        sound = account.complete and key in self._checked and key not in self._waiting
        return Verdict.OK if sound else Verdict.UNKNOWN

    def forget(self, key: tuple[str, str]) -> None:
        """Drop all that is held of a request."""
        self.ledger.close(key)
        self._streams.pop(key, None)
        self._waiting.pop(key, None)
        self._checked.discard(key)
        self.findings.pop(key, None)

    def forget_finished(self, *, before_ns: int) -> int:
        """Drop the requests that ended before `before_ns`; returns how many."""
        accounts = self.ledger.accounts
        leaving = [key for key in self.ledger.finished if (accounts[key].ended_ns or 0) < before_ns]
        for key in leaving:
            self.forget(key)
        return len(leaving)

    def _seen(self, event: Event, stream: _Stream) -> bool:
        """Whether the number was there before. The same number on another span means that the numbers cannot be trusted."""
        number = event.request_sequence
        if number in stream.early:
            known: str | None = stream.early[number].span_id
        elif number < stream.expected:
            known = stream.recent.get(number)
        else:
            stream.recent[number] = event.span_id
            if len(stream.recent) > REMEMBERED_NUMBERS:
                del stream.recent[next(iter(stream.recent))]
            return False
        if known is not None and known != event.span_id and event.request is not None:
            self.ledger.account(event.engine, event.request).complete = False
        return True

    def _catch_up(self, key: tuple[str, str], stream: _Stream, touched: dict[str, Finding]) -> None:
        while (early := stream.early.pop(stream.expected, None)) is not None:
            self._enter(early, touched)
            stream.expected += 1
        if not any(other.early for other in self._streams[key].values()):
            del self._waiting[key]

    def _skip_gaps(self, key: tuple[str, str], stream: _Stream, touched: dict[str, Finding]) -> None:
        account = self.ledger.account(*key)
        for number in sorted(stream.early):
            if number > stream.expected:
                self.missing += number - stream.expected
                account.complete = False
            self._enter(stream.early.pop(number), touched)
            stream.expected = number + 1

    def _enter(self, event: Event, touched: dict[str, Finding]) -> None:
        assert event.request is not None
        account = self.ledger.account(event.engine, event.request)
        for rule in self._by_kind.get(event.kind, ()):
            judgement = rule.judge(event, account)
            if judgement is None:
                continue
            if isinstance(judgement, Drift):
                finding = self._found(rule, event, judgement)
                touched[finding.id] = finding
                self.verdicts[rule.id, Verdict.DRIFT] += 1
            else:
                self.verdicts[rule.id, judgement] += 1
                if judgement is Verdict.OK:
                    self._checked.add((event.engine, event.request))
        self.ledger.apply(event)

    def _found(self, rule: Rule, event: Event, drift: Drift) -> Finding:
        fresh = Finding(
            rule=rule.id,
            title=rule.title,
            severity=rule.severity,
            engine=event.engine,
            request=event.request or "",
            external=event.external or "",
            trace_id=event.trace_id,
            connector=event.connector,
            epoch=event.epoch,
            first_ns=event.start_ns,
            last_ns=event.start_ns,
            count=1,
            healed=int(drift.healed),
            numbers=drift.numbers,
            witness=witnesses(drift.witness),
            hint=rule.hint,
        )
        known = self.findings.setdefault((fresh.engine, fresh.request), {}).setdefault(fresh.id, fresh)
        if known is fresh:
            fresh.explanation = rule.explain(fresh)
        else:
            known.count += 1
            known.healed += fresh.healed
            known.last_ns = max(known.last_ns, event.start_ns)
        return known
