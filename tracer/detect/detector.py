"""The detector: events in any order -> accounts and engine states -> findings, as they arrive.

Events are numbered twice: among those of their request from one recorder, and among all of the recorder's. They enter their
request's account in the order of the first number and the engine's state in the order of the second; an event that comes
early waits for those before it. What does not come within the grace time is declared missing: the account, or the engine, is
then incomplete, and rules that rely on its history answer `unknown`. A number seen twice is entered once. So the verdicts do
not depend on the order of arrival, and a lost event never causes a drift.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.ordering import Stream
from kvtrail.tracer.detect.rules import Rule, RuleSet, Tally, all_rules
from kvtrail.tracer.model.events import Event, Heartbeat, RequestStart
from kvtrail.tracer.model.events import Key as ChunkKey
from kvtrail.tracer.model.findings import Drift, Finding, Unknown, Verdict
from kvtrail.tracer.model.semconv import Kind

GRACE_NS = 10 * 10**9
"""How long an event may wait for those before it, in nanoseconds of the recorders' clocks."""
MOST_REQUESTS = 1_000_000
"""Accounts held by default."""
_WAITING = {Kind.ALLOC, Kind.REQUEST, Kind.RECEIVED}
"""After these, a request may wait for something that must come in time."""
_OK, _UNKNOWN = Verdict.OK, Verdict.UNKNOWN  # nearly all judgements, so they are counted inline

Key = tuple[str, str]
"""A request: its engine and its id."""


@dataclass(slots=True)
class _Request:
    """A tracked request: its account, the streams of its events by recorder, and whether any fact was checked."""

    account: Account
    streams: dict[str, Stream] = field(default_factory=dict)
    checked: bool = False


class Detector:
    """Judges a stream of events. Pure: no clock, no I/O, not thread-safe.

    It holds at most `max_requests` accounts. Beyond that, the longest finished is dropped first, then the longest untouched:
    a request that comes back afterwards begins a new account, which is incomplete.

    Attributes:
        accounts: by engine and request.
        finished: the accounts whose request has ended, in the order of their ends.
        findings: by request and id, for the requests whose account is held.
        changed: requests whose account changed without an event of theirs, because their engine shut down or their gaps were
            given up. The caller reads and clears it.
        lost: events that were declared missing, by engine.
    """

    def __init__(
        self,
        *,
        rules: Sequence[Rule] | None = None,
        max_requests: int = MOST_REQUESTS,
        listener: Callable[[Event, Account], None] | None = None,
    ) -> None:
        """`listener` gets each event of a request once, in the request's order, after it was entered into the account."""
        self.accounts: OrderedDict[Key, Account] = OrderedDict()
        self.finished: OrderedDict[Key, None] = OrderedDict()
        self.findings: dict[Key, dict[str, Finding]] = {}
        self.changed: list[Key] = []
        self.lost: Counter[str] = Counter()
        self._max_requests = max_requests
        self._listener = listener
        self._requests: dict[Key, _Request] = {}
        self._gaps: dict[Key, None] = {}
        self._waiting: dict[Key, None] = {}
        self._engines: dict[str, tuple[Engine, Stream]] = {}
        self._contents: dict[tuple[str | None, str], ChunkKey] = {}
        self._rules = RuleSet(all_rules() if rules is None else rules)
        self._incomplete_request_rules, self._request_rules = self._rules.for_requests
        self._incomplete_engine_rules, self._engine_rules = self._rules.for_engines

    def feed(self, events: Iterable[Event]) -> list[Finding]:
        """Enter events; returns the findings that are new or were seen again, each once."""
        touched: dict[str, Finding] = {}
        requests, engines = self._requests, self._engines
        for event in events:
            if event.request is not None:
                request = requests.get((event.engine, event.request))
                stream = None if request is None else request.streams.get(event.recorder)
                if request is None or stream is None or stream.early or event.request_sequence != stream.expected:
                    self._receive(event, touched)
                else:  # nearly always: the next one of its request
                    self._enter(event, request, stream, touched)
            elif isinstance(event, Heartbeat) and event.recorder_closed:
                self._abandon(event)
            engine, order = engines.get(event.recorder) or self._new_engine(event.recorder)
            if order.early or event.sequence != order.expected:
                self._receive_for_engine(event, engine, order, touched)
            else:
                self._enter_engine(event, engine, touched)
                order.expected += 1
        if len(self.accounts) > self._max_requests:
            self._drop_surplus(len(self.accounts) - self._max_requests)
        return list(touched.values())

    def settle(self, *, before_ns: int | None = None) -> list[Finding]:
        """Give up on missing events: everywhere, or where an event from before `before_ns` waits."""
        touched: dict[str, Finding] = {}
        for key in list(self._gaps):
            streams = self._requests[key].streams.values()
            for stream in streams:
                if stream.is_overdue(before_ns):
                    self._skip_gaps(key, stream, touched)
                    self.changed.append(key)
            if not any(stream.early for stream in streams):
                del self._gaps[key]
        for engine, stream in self._engines.values():
            if stream.is_overdue(before_ns):
                engine.complete = False
                for number in sorted(stream.early):
                    event = stream.early.pop(number)
                    if number > stream.expected:
                        engine.missed_ns = max(engine.missed_ns, event.end_ns)
                    self._enter_engine(event, engine, touched)
                    stream.expected = number + 1
        return list(touched.values())

    def tick(self) -> list[Finding]:
        """Apply the rules with a deadline to the requests that wait. Time is what their recorder's last event says: a
        recorder that has fallen silent proves nothing."""
        touched: dict[str, Finding] = {}
        for key in list(self._waiting):
            account = self._requests[key].account
            if not account.is_waiting:
                del self._waiting[key]
                continue
            held = self._engines.get(account.recorder)
            if held is None or held[1].early or held[0].missed_ns >= account.last_ns:
                continue  # what the request waits for may have been recorded, and lost
            known = {(f.rule, f.epoch) for f in self.findings.get(key, {}).values()}
            for tally, rule in self._rules.deadlines:
                if (rule.id, account.epoch) in known:
                    continue
                if (drift := rule.overdue(account, held[0].heard_ns)) is not None:
                    self._record(tally, drift, touched)
                    self.changed.append(key)
        return list(touched.values())

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule gave each verdict."""
        return self._rules.verdicts

    @property
    def missing(self) -> int:
        """Events that were declared missing, of all engines."""
        return self.lost.total()

    def waiting(self) -> Iterator[tuple[Account, int]]:
        """Accounts that may wait for something, each with the time of its engine's last event."""
        for key in self._waiting:
            account = self._requests[key].account
            held = self._engines.get(account.recorder)
            yield account, account.last_ns if held is None else max(held[0].heard_ns, account.last_ns)

    def verdict(self, account: Account) -> Verdict:
        """The request's verdict so far."""
        key = (account.engine, account.request)
        if key in self.findings:
            return Verdict.DRIFT
        request = self._requests.get(key)
        sound = account.complete and request is not None and request.checked and key not in self._gaps
        return Verdict.OK if sound else Verdict.UNKNOWN

    def has_seen(self, event: Event) -> bool:
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
        """The requests that ended before `before_ns` and expect nothing more, neither missing events nor a release."""
        ended = (key for key in self.finished if (self.accounts[key].ended_ns or 0) < before_ns)
        return [key for key in ended if key not in self._gaps and not self.accounts[key].is_waiting]

    def forget(self, key: Key) -> None:
        """Drop all that is held of a request."""
        for held in (self.accounts, self.finished, self._requests, self._gaps, self._waiting, self.findings):
            held.pop(key, None)  # type: ignore[attr-defined]

    def forget_finished(self, *, before_ns: int) -> int:
        """Drop the requests that are `over`; returns how many."""
        leaving = self.over(before_ns=before_ns)
        for key in leaving:
            self.forget(key)
        return len(leaving)

    def _open_account(self, key: Key) -> Account:
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(*key)
        return account

    def _abandon(self, event: Heartbeat) -> None:
        """Close the accounts that a recorder left open when it shut down."""
        left = [key for key, a in self.accounts.items() if a.recorder == event.recorder and key not in self.finished]
        for key in left:
            self.accounts[key].abandon(event.end_ns)
            self.finished[key] = None
        self.changed += left

    def _drop_surplus(self, surplus: int) -> None:
        leaving = [key for key, _ in zip(self.finished, range(surplus), strict=False)]
        unfinished = (key for key in self.accounts if key not in self.finished)
        leaving += [key for _, key in zip(range(surplus - len(leaving)), unfinished, strict=False)]
        for key in leaving:
            self.forget(key)

    def _stream(self, event: Event) -> Stream | None:
        request = self._requests.get((event.engine, event.request or ""))
        return None if request is None else request.streams.get(event.recorder)

    def _receive(self, event: Event, touched: dict[str, Finding]) -> None:
        """Enter an event of a request if it is its turn, and the early ones that waited for it; otherwise let it wait."""
        key = (event.engine, event.request or "")
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = _Request(self._open_account(key))
        stream = request.streams.setdefault(event.recorder, Stream())
        number = event.request_sequence
        if number != stream.expected or stream.early:
            if self._is_repeated(event, stream, request):
                return
            if number > stream.expected:
                stream.early[number] = event
                self._gaps[key] = None
                return
        self._enter(event, request, stream, touched)
        if stream.early:
            while (early := stream.early.pop(stream.expected, None)) is not None:
                self._enter(early, request, stream, touched)
            if not any(other.early for other in request.streams.values()):
                del self._gaps[key]

    def _is_repeated(self, event: Event, stream: Stream, request: _Request) -> bool:
        """Whether the number was there before. The same number on another span means that the numbers cannot be trusted."""
        number = event.request_sequence
        if number in stream.early:
            known: str | None = stream.early[number].span_id
        elif number < stream.expected:
            known = stream.known(number)
        else:
            return False
        if known is not None and known != event.span_id:
            request.account.complete = False
        return True

    def _skip_gaps(self, key: Key, stream: Stream, touched: dict[str, Finding]) -> None:
        request = self._requests[key]
        for number in sorted(stream.early):
            if number > stream.expected:
                self.lost[key[0]] += number - stream.expected
                request.account.complete = False
                stream.skip(number)
            self._enter(stream.early.pop(number), request, stream, touched)

    def _enter(self, event: Event, request: _Request, stream: Stream, touched: dict[str, Finding]) -> None:
        """Judge the event whose turn it is, and enter it into its account."""
        account = request.account
        if account.ended_ns is not None and isinstance(event, RequestStart):
            # The id is used again, for another request: it gets another account.
            key = (account.engine, account.request)
            self.finished.pop(key, None)
            self.accounts.pop(key, None)
            account = request.account = self._open_account(key)
            request.checked = False
        kind = event.kind
        rules = self._request_rules if account.complete else self._incomplete_request_rules
        for tally, judge in rules.get(kind, ()):
            judgement = judge(event, account)
            if judgement is _OK:
                tally.ok += 1
                request.checked = True
            elif judgement is _UNKNOWN:
                tally.unknown += 1
            elif judgement is not None:
                self._record(tally, judgement, touched)
        account.apply(event)
        if self._listener is not None:
            self._listener(event, account)
        if account.ended_ns is not None:
            self.finished[account.engine, account.request] = None
        if kind in _WAITING:
            self._waiting[account.engine, account.request] = None
        stream.recent.append(event.span_id)
        stream.expected = event.request_sequence + 1

    def _new_engine(self, recorder: str) -> tuple[Engine, Stream]:
        """The engine of a recorder whose first event this is."""
        held = self._engines[recorder] = (Engine(contents=self._contents), Stream())
        return held

    def _receive_for_engine(self, event: Event, engine: Engine, order: Stream, touched: dict[str, Finding]) -> None:
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
        """Judge the event whose turn it is, and enter it into its engine's state."""
        rules = self._engine_rules if engine.complete else self._incomplete_engine_rules
        for tally, judge in rules.get(event.kind, ()):
            judgement = judge(event, engine)
            if judgement is _OK:
                tally.ok += 1
            elif judgement is _UNKNOWN:
                tally.unknown += 1
            elif judgement is not None:
                self._record(tally, judgement, touched)
        if event.request is None:  # request rules that need the event alone judge it all the same
            for tally, judge_request in self._incomplete_request_rules.get(event.kind, ()):
                judgement = judge_request(event, Account(event.engine, "", complete=False))
                if judgement is not None:
                    self._record(tally, judgement, touched)
        engine.apply(event)
        if event.end_ns > engine.heard_ns:
            engine.heard_ns = event.end_ns

    def _record(self, tally: Tally, judgement: Verdict | Unknown | Drift, touched: dict[str, Finding]) -> None:
        """Count a judgement; a drift becomes a finding, or is counted in the finding that it repeats."""
        if judgement is Verdict.OK:
            tally.ok += 1
        elif judgement is Verdict.UNKNOWN or isinstance(judgement, Unknown):
            tally.unknown += 1
        elif isinstance(judgement, Drift):
            tally.drift += 1
            fresh = tally.rule.finding(judgement)
            known = self.findings.setdefault((fresh.engine, fresh.request), {}).setdefault(fresh.id, fresh)
            if known is fresh:
                fresh.explanation = tally.rule.explain(fresh)
            else:
                known.count += 1
                known.healed += fresh.healed
                known.last_ns = max(known.last_ns, fresh.last_ns)
            touched[known.id] = known
