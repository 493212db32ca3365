"""The detector: events in any order -> accounts and engine states -> findings, as they arrive.

Events are numbered twice: among those of their request from one recorder, and among all of the recorder's. They enter their
request's account in the order of the first number and the engine's state in the order of the second; an event that comes
early waits for those before it. What does not come within the grace time is declared missing: the account is then incomplete,
and the engine's state forgets what the missing events may have changed, until it is told anew. A rule that lacks such a fact
answers `Unknown`, and says why. A number seen twice is entered once. So the verdicts do not depend on the order of arrival,
and a lost event never causes a drift.

Between two recorders there is no order: their clocks are never compared.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvtrail.tracer.detect.account import SCHEDULER, Account
from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.ordering import Stream
from kvtrail.tracer.detect.rules import DeadlineRule, Rule, RuleSet, Tally, all_rules
from kvtrail.tracer.model.events import Event, Heartbeat, RequestStart
from kvtrail.tracer.model.events import Key as ChunkKey
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Unknown, Verdict
from kvtrail.tracer.model.semconv import Kind

GRACE_NS = 10 * 10**9
"""How long an event may wait for those before it, from its arrival, in nanoseconds."""
MOST_REQUESTS = 1_000_000
"""Accounts held by default."""
_MAY_WAIT = {
    Kind.REQUEST_START, Kind.LOOKUP, Kind.ALLOC, Kind.PREEMPT, Kind.RECEIVED, Kind.LOAD_ERROR, Kind.REQUEST,
}  # fmt: skip
"""After these, a request may wait for something that must come in time."""
_OK = Verdict.OK

Key = tuple[str, str]
"""A request: its engine and its id."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """A request waits, by a rule with a deadline, since an event; and the drift if it waits too long."""

    tally: Tally
    rule: DeadlineRule
    since: Event
    drift: Drift


@dataclass(slots=True)
class _Request:
    """A tracked request.

    Attributes:
        account: of its present life; an id may be used again.
        launch: the launch of the engine that the life belongs to.
        streams: its events, by recorder.
        past: recorders and launches of earlier lives, whose events come too late.
        checked: whether any fact was checked.
        broken: whether a rule failed.
        waits_ns: since when it may wait for something, in its recorder's time; 0 if it does not.
    """

    account: Account
    launch: str | None
    streams: dict[str, Stream] = field(default_factory=dict)
    past: set[str | None] = field(default_factory=set)
    checked: bool = False
    broken: bool = False
    waits_ns: int = 0


@dataclass(slots=True)
class _Recorder:
    """A recorder: its events in order, the engine as it shows it, and what waits for its time.

    Attributes:
        waiting: requests that may wait for something, the longest first.
        asked_later: what requests waited for when an event of theirs came before its turn.
    """

    engine: Engine
    order: Stream = field(default_factory=Stream)
    waiting: dict[Key, None] = field(default_factory=dict)
    asked_later: list[tuple[Event, _Wait]] = field(default_factory=list)


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
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> None:
        """`listener` gets each event of a request once, in the request's order, after it was entered into the account.
        `on_error` gets what a rule raised, or the accounting itself, with its name: the rule answers `unknown` then."""
        self.accounts: OrderedDict[Key, Account] = OrderedDict()
        self.finished: OrderedDict[Key, None] = OrderedDict()
        self.findings: dict[Key, dict[str, Finding]] = {}
        self.changed: list[Key] = []
        self.lost: Counter[str] = Counter()
        self._max_requests = max_requests
        self._listener = listener
        self._on_error = on_error
        self._requests: dict[Key, _Request] = {}
        self._gaps: dict[Key, None] = {}
        self._recorders: dict[str, _Recorder] = {}
        self._contents: dict[tuple[str | None, str], ChunkKey] = {}
        self._rules = RuleSet(all_rules() if rules is None else rules)
        self._incomplete_request_rules, self._request_rules = self._rules.for_requests
        self._blind_engine_rules, self._engine_rules = self._rules.for_engines
        self._soonest_ns = min((int(rule.after_s * 1e9) for _, rule in self._rules.deadlines), default=0)

    def feed(self, events: Iterable[Event], *, at_ns: int = 0) -> list[Finding]:
        """Enter events that arrived at `at_ns`, by any clock that `settle` uses too; returns the findings that are new or
        were seen again, each once."""
        touched: dict[str, Finding] = {}
        requests, recorders = self._requests, self._recorders
        for event in events:
            recorder = recorders.get(event.recorder) or self._new_recorder(event.recorder)
            order = recorder.order
            in_turn = not order.early and event.sequence == order.expected
            if in_turn:  # nearly always: the next one of its recorder
                self._enter_engine(event, recorder, touched)
                order.expected += 1
            if event.request is not None:
                request = requests.get((event.engine, event.request))
                stream = None if request is None else request.streams.get(event.recorder)
                if (
                    request is None
                    or stream is None
                    or stream.early
                    or event.request_sequence != stream.expected
                    or event.launch != request.launch
                ):
                    self._receive(event, recorder, at_ns, touched)
                else:  # nearly always: the next one of its request
                    self._enter(event, request, stream, recorder, touched)
            if not in_turn:  # after its request: the time that then goes on may be what the request was waiting for
                self._receive_for_engine(event, recorder, at_ns, touched)
        if len(self.accounts) > self._max_requests:
            self._drop_surplus(len(self.accounts) - self._max_requests)
        return list(touched.values())

    def settle(self, *, before_ns: int | None = None) -> list[Finding]:
        """Give up on missing events: everywhere, or where an event waits that arrived before `before_ns`."""
        touched: dict[str, Finding] = {}
        for recorder in self._recorders.values():
            if recorder.order.is_overdue(before_ns):
                self._skip_engine_gaps(recorder, touched)
        for key in list(self._gaps):
            request = self._requests[key]
            for name, stream in request.streams.items():
                if stream.is_overdue(before_ns):
                    self._skip_gaps(request, stream, self._recorders.get(name) or _Recorder(Engine()), touched)
                    self.changed.append(key)
            if not any(stream.early for stream in request.streams.values()):
                del self._gaps[key]
        return list(touched.values())

    def tick(self) -> list[Finding]:
        """Ask once more how long the waiting requests have waited, by the last that their recorders said. Rules with a
        deadline are asked at every sign of life, so this is for the end of a history."""
        touched: dict[str, Finding] = {}
        for recorder in self._recorders.values():
            if not recorder.order.early:
                self._ask_deadlines(recorder, touched, soonest_ns=0, is_last=True)
        return list(touched.values())

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule gave each verdict."""
        return self._rules.verdicts

    @property
    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """How often each rule could not decide, by the reason."""
        return self._rules.unknown

    @property
    def missing(self) -> int:
        """Events that were declared missing, of all engines."""
        return self.lost.total()

    def waiting(self) -> Iterator[tuple[Account, int]]:
        """Accounts that may wait for something, each with the time of its recorder's last event."""
        for recorder in self._recorders.values():
            for key in recorder.waiting:
                if (account := self.accounts.get(key)) is not None:
                    yield account, max(recorder.engine.time.now_ns, account.last_ns)

    def verdict(self, account: Account) -> Verdict:
        """The request's verdict so far."""
        if (account.engine, account.request) in self.findings:
            return Verdict.DRIFT
        return Verdict.OK if self.why_unknown(account) is None else Verdict.UNKNOWN

    def why_unknown(self, account: Account) -> Unknown | None:
        """Why it cannot be said of the request that all is well; None if it can. A finding is another matter."""
        key = (account.engine, account.request)
        request = self._requests.get(key)
        if account.missing is not None:
            return account.missing
        if request is None or request.broken:
            return Unknown.RULE
        if key in self._gaps:
            return Unknown.LOST
        if account.evidence.ended is None:
            return Unknown.OPEN
        return None if request.checked else Unknown.UNCHECKED

    def has_seen(self, event: Event) -> bool:
        """Whether an event with this number of its request, from this recorder, was there before."""
        stream = self._stream(event)
        return stream is not None and (
            event.request_sequence < stream.expected or event.request_sequence in stream.early
        )

    def gave_up(self, event: Event) -> bool:
        """Whether the event's number was declared missing, or its place in the engine's order is past."""
        stream, recorder = self._stream(event), self._recorders.get(event.recorder)
        late = recorder is not None and event.sequence < recorder.order.expected
        return late or (stream is not None and event.request_sequence < stream.expected)

    def over(self, *, before_ns: int) -> list[Key]:
        """The requests that ended before `before_ns` and expect nothing more, neither missing events nor a release."""
        ended = (key for key in self.finished if (self.accounts[key].ended_ns or 0) < before_ns)
        return [key for key in ended if key not in self._gaps and not self.accounts[key].is_waiting]

    def forget(self, key: Key) -> None:
        """Drop all that is held of a request."""
        for held in (self.accounts, self.finished, self._requests, self._gaps, self.findings):
            held.pop(key, None)  # type: ignore[attr-defined]

    def forget_finished(self, *, before_ns: int) -> int:
        """Drop the requests that are `over`, and the recorders that said goodbye before `before_ns`; returns how many
        requests were dropped."""
        leaving = self.over(before_ns=before_ns)
        for key in leaving:
            self.forget(key)
        self.forget_recorders(
            [
                name
                for name, recorder in self._recorders.items()
                if recorder.engine.closed and recorder.engine.time.now_ns < before_ns and not recorder.order.early
            ]
        )
        return len(leaving)

    def forget_recorders(self, names: Iterable[str]) -> None:
        """Drop what is held of engines, by their recorders' ids. One that speaks again begins anew, as if it had been joined
        late."""
        for name in names:
            self._recorders.pop(name, None)

    # Requests.

    def _open_account(self, key: Key) -> Account:
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(*key)
        return account

    def _drop_surplus(self, surplus: int) -> None:
        leaving = [key for key, _ in zip(self.finished, range(surplus), strict=False)]
        unfinished = (key for key in self.accounts if key not in self.finished)
        leaving += [key for _, key in zip(range(surplus - len(leaving)), unfinished, strict=False)]
        for key in leaving:
            self.forget(key)

    def _stream(self, event: Event) -> Stream | None:
        request = self._requests.get((event.engine, event.request or ""))
        return None if request is None else request.streams.get(event.recorder)

    def _receive(self, event: Event, recorder: _Recorder, at_ns: int, touched: dict[str, Finding]) -> None:
        """Enter an event of a request if it is its turn, and the early ones that waited for it; otherwise let it wait."""
        key = (event.engine, event.request or "")
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = _Request(self._open_account(key), event.launch)
            if event.sequence < recorder.order.expected - 1:  # of one that was forgotten: the others do not come again
                request.account.lose(Unknown.LOST)
        elif event.recorder in request.past or event.launch in request.past:
            return
        elif _is_another_life(event, request):
            self._begin_again(key, request, event)
        stream = request.streams.setdefault(event.recorder, Stream())
        number = event.request_sequence
        if number != stream.expected or stream.early:
            if self._is_repeated(event, stream, request):
                return
            if number > stream.expected:
                stream.early[number] = (at_ns, event)
                self._gaps[key] = None
                return
        self._enter(event, request, stream, recorder, touched)
        if stream.early:
            while (early := stream.early.pop(stream.expected, None)) is not None:
                self._enter(early[1], request, stream, recorder, touched)
            if not any(other.early for other in request.streams.values()):
                del self._gaps[key]

    def _is_repeated(self, event: Event, stream: Stream, request: _Request) -> bool:
        """Whether the number was there before. The same number on another span means that the numbers cannot be trusted."""
        number = event.request_sequence
        if number in stream.early:
            known: str | None = stream.early[number][1].span_id
        elif number < stream.expected:
            known = stream.known(number)
        else:
            return False
        if known is not None and known != event.span_id:
            request.account.lose(Unknown.LOST)
        return True

    def _skip_gaps(self, request: _Request, stream: Stream, recorder: _Recorder, touched: dict[str, Finding]) -> None:
        joined_late = stream.expected == 0 and recorder.engine.missing is Unknown.LATE
        for number in sorted(stream.early):
            if number > stream.expected:
                request.account.lose(Unknown.LATE if joined_late else Unknown.LOST)
                if recorder.engine.missing is None:  # otherwise they are missing among the recorder's numbers, too
                    self.lost[request.account.engine] += number - stream.expected
                stream.skip(number)
            self._enter(stream.early.pop(number)[1], request, stream, recorder, touched)

    def _begin_again(self, key: Key, request: _Request, event: Event) -> None:
        """The id is used for another request, by another launch of the engine: it gets another account."""
        request.past |= {request.launch, *request.streams} - {event.launch}
        request.launch, request.streams = event.launch, {}
        self._gaps.pop(key, None)
        self._new_account(key, request)

    def _new_account(self, key: Key, request: _Request) -> Account:
        if (recorder := self._recorders.get(request.account.recorder)) is not None:
            recorder.waiting.pop(key, None)
        self.finished.pop(key, None)
        self.accounts.pop(key, None)
        request.account = self._open_account(key)
        request.checked, request.waits_ns = False, 0
        return request.account

    def _enter(
        self, event: Event, request: _Request, stream: Stream, recorder: _Recorder, touched: dict[str, Finding]
    ) -> None:
        """Judge the event whose turn it is, and enter it into its account."""
        account, kind = request.account, event.kind
        if account.ended_ns is not None and (event.role == SCHEDULER):
            account = self._reopen(event, request)
        time = recorder.engine.time
        if request.waits_ns and (time.now_ns - request.waits_ns >= self._soonest_ns or time.number < event.sequence):
            self._ask_deadlines_of(event, request, recorder, touched)
        rules = self._request_rules if account.missing is None else self._incomplete_request_rules
        for tally, judge in rules.get(kind, ()):
            try:
                judgement = judge(event, account)
                if judgement is _OK:
                    tally.ok += 1
                    request.checked = True
                elif judgement is not None:
                    self._record(tally, judgement, touched)
            except Exception as error:
                self._failed(tally, error)
                request.broken = True
        try:
            account.apply(event)
            if self._listener is not None:
                self._listener(event, account)
        except Exception as error:
            self._failed("account", error)
            account.lose(Unknown.RULE)
        key = (account.engine, account.request)
        if account.ended_ns is not None:
            self.finished[key] = None
        if kind in _MAY_WAIT and not request.waits_ns and account.missing is None and event.role == SCHEDULER:
            request.waits_ns = time.of(event) if time.number >= event.sequence else time.now_ns or 1
            recorder.waiting[key] = None
        stream.recent.append(event.span_id)
        stream.expected = event.request_sequence + 1

    def _reopen(self, event: Event, request: _Request) -> Account:
        """An event after the end: late, or the first of another request with the same id, or the goodbye came too soon."""
        account = request.account
        key = (account.engine, account.request)
        if isinstance(event, RequestStart):
            account = self._new_account(key, request)
            if len(request.streams) > 1:
                account.lose(Unknown.REUSED)
        elif account.status == "abandoned":
            account.status, account.ended_ns = "running", None
            self.finished.pop(key, None)
        return account

    # Engines.

    def _new_recorder(self, name: str) -> _Recorder:
        held = self._recorders[name] = _Recorder(Engine(contents=self._contents))
        return held

    def _receive_for_engine(self, event: Event, recorder: _Recorder, at_ns: int, touched: dict[str, Finding]) -> None:
        number, order = event.sequence, recorder.order
        if number != order.expected:
            if number > order.expected:
                order.early.setdefault(number, (at_ns, event))
            return
        self._enter_engine(event, recorder, touched)
        order.expected += 1
        while order.early and (early := order.early.pop(order.expected, None)) is not None:
            self._enter_engine(early[1], recorder, touched)
            order.expected += 1
        self._ask_late(recorder, touched)

    def _skip_engine_gaps(self, recorder: _Recorder, touched: dict[str, Finding]) -> None:
        order, engine = recorder.order, recorder.engine
        for number in sorted(order.early):
            _, event = order.early.pop(number)
            if number > order.expected:
                if order.expected == 0:
                    engine.lose(Unknown.LATE, before=event)
                else:
                    engine.lose(Unknown.LOST, before=event)
                    self.lost[event.engine] += number - order.expected
            self._enter_engine(event, recorder, touched)
            order.expected = number + 1
        self._ask_late(recorder, touched)

    def _enter_engine(self, event: Event, recorder: _Recorder, touched: dict[str, Finding]) -> None:
        """Judge the event whose turn it is, and enter it into its engine's state."""
        engine, kind = recorder.engine, event.kind
        rules = self._engine_rules if engine.blind is None else self._blind_engine_rules
        for tally, judge in rules.get(kind, ()):
            try:
                judgement = judge(event, engine)
                if judgement is _OK:
                    tally.ok += 1
                elif judgement is not None:
                    self._record(tally, judgement, touched)
            except Exception as error:
                self._failed(tally, error)
        if event.request is None:  # request rules that need the event alone judge it all the same
            for tally, judge_request in self._incomplete_request_rules.get(kind, ()):
                try:
                    judgement = judge_request(event, Account(event.engine, "", missing=Unknown.UNSEEN))
                    if judgement is not None:
                        self._record(tally, judgement, touched)
                except Exception as error:
                    self._failed(tally, error)
        try:
            engine.apply(event)
            engine.time.enter(event)
        except Exception as error:
            self._failed("engine", error)
            engine.lose(Unknown.RULE, before=event)
        if isinstance(event, Heartbeat):
            engine.closed = event.recorder_closed
            if event.recorder_closed:
                self._abandon(event)
            elif recorder.waiting:
                self._ask_deadlines(recorder, touched, soonest_ns=self._soonest_ns)

    def _abandon(self, goodbye: Event) -> None:
        """Close the accounts that a recorder left open when it shut down."""
        left = [key for key, a in self.accounts.items() if a.recorder == goodbye.recorder and key not in self.finished]
        for key in left:
            self.accounts[key].abandon(goodbye.end_ns)
            self.finished[key] = None
        self.changed += left

    # Deadlines.

    def _ask_deadlines(
        self, recorder: _Recorder, touched: dict[str, Finding], *, soonest_ns: int, is_last: bool = False
    ) -> None:
        """Ask how long requests have waited, of those that may have waited for `soonest_ns`."""
        now_ns = recorder.engine.time.now_ns
        for key in list(recorder.waiting):
            request = self._requests.get(key)
            if request is None:
                del recorder.waiting[key]
                continue
            if now_ns - request.waits_ns < soonest_ns:
                break
            account = request.account
            if recorder.engine.lost_number > account.evidence.number:
                continue  # what it waits for may have been recorded, and lost
            waits = self._waits(account)
            for wait in waits:
                if self._judge_wait(wait, now_ns, recorder, touched, is_last=is_last):
                    self.changed.append(key)
            if not waits:
                request.waits_ns = 0
                del recorder.waiting[key]

    def _ask_deadlines_of(
        self, event: Event, request: _Request, recorder: _Recorder, touched: dict[str, Finding]
    ) -> None:
        """Ask how long a request has waited when its next event comes, which may end the waiting."""
        if event.recorder != request.account.recorder:
            return
        time = recorder.engine.time
        if time.number < event.sequence:  # it came before its turn
            recorder.asked_later += [(event, wait) for wait in self._waits(request.account)]
        elif time.of(event) - request.waits_ns >= self._soonest_ns:
            for wait in self._waits(request.account):
                self._judge_wait(wait, time.of(event), recorder, touched, is_last=True)

    def _ask_late(self, recorder: _Recorder, touched: dict[str, Finding]) -> None:
        """Ask how long requests had waited when the events came whose turn it has been meanwhile."""
        time, asked = recorder.engine.time, recorder.asked_later
        recorder.asked_later = [(event, wait) for event, wait in asked if event.sequence > time.number]
        for event, wait in asked:
            if event.sequence <= time.number:
                self._judge_wait(wait, time.of(event), recorder, touched, is_last=True)

    def _waits(self, account: Account) -> list[_Wait]:
        """What a request waits for."""
        if account.missing is not None or account.status == "abandoned":
            return []
        waits = []
        for tally, rule in self._rules.deadlines:
            try:
                if (pending := rule.pending(account)) is not None:
                    waits.append(_Wait(tally, rule, *pending))
            except Exception as error:
                self._failed(tally, error)
        return waits

    def _judge_wait(
        self, wait: _Wait, until_ns: int, recorder: _Recorder, touched: dict[str, Finding], *, is_last: bool
    ) -> bool:
        """Whether a request has waited too long. What is known already is told the final time when the waiting ends."""
        waited_s = (until_ns - recorder.engine.time.of(wait.since)) / 1e9
        if waited_s < wait.rule.after_s or wait.since.sequence > recorder.engine.time.number:  # the account is ahead
            return False
        drift = replace(wait.drift, numbers={"waited_s": round(waited_s, 1), **wait.drift.numbers})
        try:
            fresh = wait.rule.finding(drift)
            known = self.findings.get((fresh.engine, fresh.request), {}).get(fresh.id)
            if known is None:
                self._record(wait.tally, drift, touched)
            elif is_last and known.numbers != drift.numbers:
                known.numbers = drift.numbers
                known.explanation = wait.rule.explain(known)
                touched[known.id] = known
        except Exception as error:
            self._failed(wait.tally, error)
        return True

    # Judgements.

    def _record(self, tally: Tally, judgement: Judgement, touched: dict[str, Finding]) -> None:
        """Count a judgement; a drift becomes a finding, or is counted in the finding that it repeats."""
        if isinstance(judgement, Unknown):
            tally.unknown[judgement] += 1
        elif isinstance(judgement, Drift):
            fresh = tally.rule.finding(judgement)
            held = self.findings.get((fresh.engine, fresh.request), {})
            known = held.get(fresh.id)
            if known is None:
                fresh.explanation = tally.rule.explain(fresh)
                known = fresh
            else:
                known.count += 1
                known.healed += fresh.healed
                known.last_ns = max(known.last_ns, fresh.last_ns)
            held[known.id] = touched[known.id] = known
            self.findings[fresh.engine, fresh.request] = held
            tally.drift += 1
        else:
            tally.ok += judgement is _OK

    def _failed(self, what: Tally | str, error: Exception) -> None:
        """A rule has raised, or the accounting itself."""
        if isinstance(what, Tally):
            what.unknown[Unknown.RULE] += 1
        if self._on_error is not None:
            self._on_error(what if isinstance(what, str) else what.rule.id, error)


def _is_another_life(event: Event, request: _Request) -> bool:
    """Whether the event is of another request with the same id, in another launch of the engine."""
    known = request.account.recorder
    return event.launch != request.launch or (isinstance(event, RequestStart) and known not in ("", event.recorder))
