"""Events in any order -> accounts and engines -> findings, as they come.

Events are numbered twice: among those of their request from one recorder, and among all of the recorder's. They are entered
into a request's account by the first number and into the engine's state by the second; one that comes early waits for those
before it. What does not come within the grace time is declared missing: the account, or the engine, is then incomplete, and
rules that lean on its history answer `unknown`. A number seen twice is entered once. So the verdicts do not depend on the
order of arrival, and no loss can make a drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.cases import Case, Stream, is_due, waits
from kvtrail.tracer.detect.court import Court, Tally
from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.ledger import Ledger
from kvtrail.tracer.detect.rules import Rule, all_rules
from kvtrail.tracer.model.events import Event, Heartbeat, RequestStart
from kvtrail.tracer.model.events import Key as ChunkKey
from kvtrail.tracer.model.findings import Drift, Finding, Verdict
from kvtrail.tracer.model.semconv import Kind

GRACE_NS = 10 * 10**9
"""How long an event may wait for those before it, in nanoseconds of the recorders' clocks."""
WAITING = {Kind.ALLOC, Kind.REQUEST, Kind.RECEIVED}
"""After these, a request may wait for something that must come in time."""
_OK, _UNKNOWN = Verdict.OK, Verdict.UNKNOWN  # nearly all that a rule says, and so counted where it is said

Key = tuple[str, str]


class Detector:
    """Judges a stream of events. Pure: no clock, no I/O, not thread-safe."""

    def __init__(
        self,
        *,
        rules: Sequence[Rule] | None = None,
        ledger: Ledger | None = None,
        listener: Callable[[Event, Account], None] | None = None,
    ) -> None:
        """`listener` is told each event of a request once and in the request's order, when its account has taken it."""
        self.ledger = ledger or Ledger()
        self._listener = listener
        self.findings: dict[Key, dict[str, Finding]] = {}
        """Findings by request and id, for the requests whose account is still held."""
        self.changed: list[Key] = []
        """Requests whose account changed without an event of theirs: their engine ended, or their gaps were given up.
        For the caller to read and to clear."""
        self.lost: Counter[str] = Counter()
        """Events that were declared missing, by engine."""
        self._cases: dict[Key, Case] = {}
        self._gaps: dict[Key, None] = {}
        self._waiting: dict[Key, None] = {}
        self._engines: dict[str, tuple[Engine, Stream]] = {}
        self._contents: dict[tuple[str | None, str], ChunkKey] = {}
        self._court = Court(all_rules() if rules is None else rules)
        self._by_kind, self._by_engine = self._court.by_kind, self._court.by_engine

    def feed(self, events: Iterable[Event]) -> list[Finding]:
        """Enter events; returns the findings that are new or were seen again, each once."""
        touched: dict[str, Finding] = {}
        cases, engines = self._cases, self._engines
        for event in events:
            if event.request is not None:
                case = cases.get((event.engine, event.request))
                stream = None if case is None else case.streams.get(event.recorder)
                if case is None or stream is None or stream.early or event.request_sequence != stream.expected:
                    self._hear(event, touched)
                else:  # the next one of its request, as nearly always
                    self._enter(event, case, stream, touched)
            elif isinstance(event, Heartbeat) and event.recorder_closed:
                self.changed += self.ledger.abandon(event)
            engine, order = engines.get(event.recorder) or self._met(event.recorder)
            if order.early or event.sequence != order.expected:
                self._hear_engine(event, engine, order, touched)
            else:
                self._enter_engine(event, engine, touched)
                order.expected += 1
        for key in self.ledger.over_limit():
            self.forget(key)
        return list(touched.values())

    def settle(self, *, before_ns: int | None = None) -> list[Finding]:
        """Give up on what is missing: everywhere, or where an event from before `before_ns` waits."""
        touched: dict[str, Finding] = {}
        for key in list(self._gaps):
            streams = self._cases[key].streams.values()
            for stream in streams:
                if is_due(stream, before_ns):
                    self._skip_gaps(key, stream, touched)
                    self.changed.append(key)
            if not any(stream.early for stream in streams):
                del self._gaps[key]
        for engine, stream in self._engines.values():
            if is_due(stream, before_ns):
                engine.complete = False
                for number in sorted(stream.early):
                    event = stream.early.pop(number)
                    if number > stream.expected:
                        engine.missed_ns = max(engine.missed_ns, event.end_ns)
                    self._enter_engine(event, engine, touched)
                    stream.expected = number + 1
        return list(touched.values())

    def tick(self) -> list[Finding]:
        """Ask about the requests that wait for something. It is as late as their recorder was last heard of: one that has
        fallen silent proves nothing by it."""
        touched: dict[str, Finding] = {}
        for key in list(self._waiting):
            account = self._cases[key].account
            if not waits(account):
                del self._waiting[key]
                continue
            held = self._engines.get(account.recorder)
            if held is None or held[1].early or held[0].missed_ns >= account.last_ns:
                continue  # what the request waits for may have been recorded, and lost
            told = {(f.rule, f.epoch) for f in self.findings.get(key, {}).values()}
            for tally, rule in self._court.deadlines:
                if (rule.id, account.epoch) in told:
                    continue
                if (drift := rule.overdue(account, held[0].heard_ns)) is not None:
                    self._judged(tally, drift, touched)
                    self.changed.append(key)
        return list(touched.values())

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule gave each verdict."""
        return self._court.verdicts

    @property
    def missing(self) -> int:
        """Events that were declared missing, of all engines."""
        return self.lost.total()

    def waiting(self) -> Iterator[tuple[Account, int]]:
        """Accounts that may wait for something, each with the moment at which its engine was last heard of."""
        for key in self._waiting:
            account = self._cases[key].account
            held = self._engines.get(account.recorder)
            yield account, account.last_ns if held is None else max(held[0].heard_ns, account.last_ns)

    def verdict(self, account: Account) -> Verdict:
        """The request's verdict so far."""
        key = (account.engine, account.request)
        if key in self.findings:
            return Verdict.DRIFT
        case = self._cases.get(key)
        sound = account.complete and case is not None and case.checked and key not in self._gaps
        return Verdict.OK if sound else Verdict.UNKNOWN

    def knows(self, event: Event) -> bool:
        """Whether an event with this number of its request, from this recorder, was there before."""
        stream = self._stream(event)
        return stream is not None and (
            event.request_sequence < stream.expected or event.request_sequence in stream.early
        )

    def gave_up(self, event: Event) -> bool:
        """Whether the event's number was declared missing, or its place in the engine's order is past."""
        stream, held = self._stream(event), self._engines.get(event.recorder)
        late = held is not None and event.sequence < held[1].expected
        return late or (stream is not None and event.request_sequence < stream.expected)

    def over(self, *, before_ns: int) -> list[Key]:
        """The requests that ended before `before_ns`, and of which nothing more is expected."""
        accounts = self.ledger.accounts
        ended = (key for key in self.ledger.finished if (accounts[key].ended_ns or 0) < before_ns)
        return [key for key in ended if key not in self._gaps and not waits(accounts[key])]

    def forget(self, key: Key) -> None:
        """Drop all that is held of a request."""
        self.ledger.close(key)
        self._cases.pop(key, None)
        self._gaps.pop(key, None)
        self._waiting.pop(key, None)
        self.findings.pop(key, None)

    def forget_finished(self, *, before_ns: int) -> int:
        """Drop the requests that ended before `before_ns`, but for those whose blocks are still kept; returns how many."""
        leaving = self.over(before_ns=before_ns)
        for key in leaving:
            self.forget(key)
        return len(leaving)

    def _stream(self, event: Event) -> Stream | None:
        case = self._cases.get((event.engine, event.request or ""))
        return None if case is None else case.streams.get(event.recorder)

    def _hear(self, event: Event, touched: dict[str, Finding]) -> None:
        key = (event.engine, event.request or "")
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = Case(self.ledger.account(*key))
        stream = case.streams.get(event.recorder)
        if stream is None:
            stream = case.streams[event.recorder] = Stream()
        number = event.request_sequence
        if number != stream.expected or stream.early:
            if self._seen(event, stream, case):
                return
            if number > stream.expected:
                stream.early[number] = event
                self._gaps[key] = None
                return
        self._enter(event, case, stream, touched)
        if stream.early:
            self._catch_up(key, case, stream, touched)

    def _seen(self, event: Event, stream: Stream, case: Case) -> bool:
        """Whether the number was there before. The same number on another span means that the numbers cannot be trusted."""
        number = event.request_sequence
        if number in stream.early:
            known: str | None = stream.early[number].span_id
        elif number < stream.expected:
            known = stream.known(number)
        else:
            return False
        if known is not None and known != event.span_id:
            case.account.complete = False
        return True

    def _catch_up(self, key: Key, case: Case, stream: Stream, touched: dict[str, Finding]) -> None:
        while (early := stream.early.pop(stream.expected, None)) is not None:
            self._enter(early, case, stream, touched)
        if not any(other.early for other in case.streams.values()):
            del self._gaps[key]

    def _skip_gaps(self, key: Key, stream: Stream, touched: dict[str, Finding]) -> None:
        case = self._cases[key]
        for number in sorted(stream.early):
            if number > stream.expected:
                self.lost[key[0]] += number - stream.expected
                case.account.complete = False
                stream.skip(number)
            self._enter(stream.early.pop(number), case, stream, touched)

    def _enter(self, event: Event, case: Case, stream: Stream, touched: dict[str, Finding]) -> None:
        """Judge the event whose turn it is, and take it into its account."""
        account = case.account
        if account.ended_ns is not None and isinstance(event, RequestStart):
            # The id is used again: another request, and another account.
            key = (account.engine, account.request)
            self.ledger.close(key)
            account = case.account = self.ledger.account(*key)
            case.checked = False
        kind = event.kind
        for tally, judge in self._by_kind.get(kind, ()):
            judgement = judge(event, account)
            if judgement is _OK:
                tally.ok += 1
                case.checked = True
            elif judgement is _UNKNOWN:
                tally.unknown += 1
            elif judgement is not None:
                self._judged(tally, judgement, touched)
        account.apply(event)
        if self._listener is not None:
            self._listener(event, account)
        if account.ended_ns is not None:
            self.ledger.finished[account.engine, account.request] = None
        if kind in WAITING:
            self._waiting[account.engine, account.request] = None
        stream.recent.append(event.span_id)
        stream.expected = event.request_sequence + 1

    def _met(self, recorder: str) -> tuple[Engine, Stream]:
        """The engine of a recorder that is heard for the first time."""
        held = self._engines[recorder] = (Engine(contents=self._contents), Stream())
        return held

    def _hear_engine(self, event: Event, engine: Engine, order: Stream, touched: dict[str, Finding]) -> None:
        number = event.sequence
        if number != order.expected:
            if number > order.expected:
                order.early.setdefault(number, event)
            return
        self._enter_engine(event, engine, touched)
        order.expected += 1
        while order.early and (early := order.early.pop(order.expected, None)) is not None:
            self._enter_engine(early, engine, touched)
            order.expected += 1

    def _enter_engine(self, event: Event, engine: Engine, touched: dict[str, Finding]) -> None:
        for tally, judge in self._by_engine.get(event.kind, ()):
            judgement = judge(event, engine)
            if judgement is _OK:
                tally.ok += 1
            elif judgement is _UNKNOWN:
                tally.unknown += 1
            elif judgement is not None:
                self._judged(tally, judgement, touched)
        if event.request is None:  # a rule that needs the event alone judges it all the same
            for tally, judge_request in self._by_kind.get(event.kind, ()):
                judgement = judge_request(event, Account(event.engine, "", complete=False))
                if judgement is not None:
                    self._judged(tally, judgement, touched)
        engine.apply(event)
        if event.end_ns > engine.heard_ns:
            engine.heard_ns = event.end_ns

    def _judged(self, tally: Tally, judgement: Verdict | Drift, touched: dict[str, Finding]) -> None:
        if isinstance(judgement, Drift):
            finding = self._kept(tally.rule, tally.rule.finding(judgement))
            touched[finding.id] = finding
            tally.drift += 1
        elif judgement is Verdict.OK:
            tally.ok += 1
        else:
            tally.unknown += 1

    def _kept(self, rule: Rule, fresh: Finding) -> Finding:
        """The finding that is held: this one, or the one that it shows once more."""
        known = self.findings.setdefault((fresh.engine, fresh.request), {}).setdefault(fresh.id, fresh)
        if known is fresh:
            fresh.explanation = rule.explain(fresh)
        else:
            known.count += 1
            known.healed += fresh.healed
            known.last_ns = max(known.last_ns, fresh.last_ns)
        return known
