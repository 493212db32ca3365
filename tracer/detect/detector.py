"""The detector: events in any order -> accounts and engine states -> findings, as they arrive.

Events are numbered twice: among those of their request from one recorder, and among all of the recorder's. They enter their
request's account in the order of the first number and the engine's state in the order of the second; an early event waits for
the ones before it. An event that does not arrive within the grace time is declared missing: the account is then incomplete,
and the engine's state forgets the facts that it may have changed, until they are reported again. A rule that lacks such a
fact answers `Unknown`, with the reason. A duplicate number is entered once. So the verdicts do not depend on the order of
arrival, and a lost event never causes a drift.

Events of two recorders have no order: their clocks are never compared.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from kvtrail.tracer.causes.causes import KINDS_OF_ANY_ROLE, Causes
from kvtrail.tracer.causes.fleet import Fleet
from kvtrail.tracer.detect.deadlines import MAY_WAIT, Deadlines
from kvtrail.tracer.detect.judgements import Judgements, by_field
from kvtrail.tracer.detect.pairs import Pairs, RemoteHandoff
from kvtrail.tracer.detect.tracked import Key, TrackedRecorder, TrackedRequest
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, Heartbeat, RequestEnd, RequestStart, Reset
from kvtrail.tracer.ledger.account import SCHEDULER, Account, Evidence
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.facts import Breakdown, Fact
from kvtrail.tracer.ledger.handoff_sums import HandedOver
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.ledger.ordering import REMEMBERED_NUMBERS, Stream, is_too_far
from kvtrail.tracer.ledger.rule_states import RuleStates, followers
from kvtrail.tracer.model.causes import NotRecorded
from kvtrail.tracer.model.findings import OK, Finding, Unknown, Verdict
from kvtrail.tracer.rules.rule import EngineRule, RequestRule, Rule
from kvtrail.tracer.rules.rule_set import RuleSet, all_rules

GRACE_NS = 10 * 10**9
"""Maximum time that an event waits for earlier ones, from its arrival, in nanoseconds."""
MAX_REQUESTS = 1_000_000
"""Default maximum number of accounts in memory."""


def _never() -> bool:
    return False


class Detector:
    """Judges a stream of events. Pure: no clock, no I/O, not thread-safe.

    It holds at most `max_requests` accounts. Beyond that, the account that finished first is dropped, or else the oldest one:
    later events of a dropped request begin a new account, which is incomplete.

    Attributes:
        accounts: by engine and request.
        finished: the accounts of ended requests, in the order of their ends, each with the arrival time of its last event.
        findings: by request and id, for the requests with an account in memory.
        changed: requests whose account changed without an event of theirs, because their engine shut down or their
            gaps were given up, or their prompt was explained, maybe long after its event arrived. The caller reads and clears
            it.
        lost: number of events declared missing, by engine.
        is_unsettled: whether there are waiting events that `settle` had no time to enter.
        handoffs: the hand-offs between engines.
    """

    def __init__(
        self,
        *,
        rules: Sequence[Rule] | None = None,
        max_requests: int = MAX_REQUESTS,
        listener: Callable[[Event, Account], None] | None = None,
        on_fact: Callable[[Fact, Account], None] | None = None,
        on_causes: Callable[[Event, Breakdown], None] | None = None,
        on_reset: Callable[[Reset], None] | None = None,
        on_handoff: Callable[[RemoteHandoff], None] | None = None,
        on_handed_over: Callable[[HandedOver], None] | None = None,
        on_error: Callable[[str, Exception], None] | None = None,
        came_before: Mapping[str, int] | None = None,
    ) -> None:
        """
        Args:
            listener: called once with each event of a request, in the request's order, after it was entered into the account.
            on_fact: called with each fact that such an event establishes, before the listener.
            on_causes: called once with each admission, when the parts of its prompt are final, and the event that made them
                so.
            on_reset: called at each reset of a connector's cache.
            on_handoff: called with each entered event of a hand-off; `ingest_remote` accepts it.
            on_handed_over: called with each end of a hand-off, on either side.
            on_error: called with an exception of a rule, or of the accounting, and its name: the rule then answers `unknown`.
            came_before: by recorder, the highest number that an earlier detector received. Numbers up to it that do not
                arrive again are unknown here, but not missing.
        """
        self.accounts: OrderedDict[Key, Account] = OrderedDict()
        self.finished: OrderedDict[Key, int] = OrderedDict()
        self._judgements = Judgements(on_error)
        self.findings = self._judgements.findings
        self.changed: list[Key] = []
        self.lost: Counter[str] = Counter()
        self.is_unsettled = False
        self._is_enough: Callable[[], bool] = _never
        self._came_before = came_before or {}
        self._max_requests = max_requests
        self._at_ns = 0
        self._listener, self._on_fact = listener, on_fact
        self._on_causes, self._on_reset = on_causes, on_reset
        self._requests: dict[Key, TrackedRequest] = {}
        self._gaps: dict[Key, None] = {}
        self._recorders: dict[str, TrackedRecorder] = {}
        self._fleet = Fleet()
        given = all_rules() if rules is None else rules
        self._rules = RuleSet(given)
        self._incomplete_request_rules, self._request_rules = map(by_field, self._rules.for_requests)
        self._blind_engine_rules, self._engine_rules = map(by_field, self._rules.for_engines)
        states = [(rule, rule.State) for rule in given if rule.State is not None]
        self._of_requests = followers(state for rule, state in states if isinstance(rule, RequestRule))
        self._of_engines = followers(state for rule, state in states if isinstance(rule, EngineRule))
        self._shared = {state: state() for rule, state in states if rule.shares_state}
        self._pairs = Pairs(
            self._rules.for_pairs, self._judgements, HandOffs(on_handed_over), on_handoff, self._came_before
        )
        self.handoffs: HandOffs = self._pairs.handoffs
        self._deadlines = Deadlines(self._rules.deadlines, self._requests, self._judgements)

    def feed(self, events: Iterable[Event], *, at_ns: int = 0, is_enough: Callable[[], bool] = _never) -> list[Finding]:
        """Enter events that arrived at `at_ns`, by the same clock as in `settle`. Returns the findings that are new or
        recurred, each once. An event may release others that waited for it: after `is_enough` returns true, the rest of them
        is left to `settle`."""
        requests, recorders = self._requests, self._recorders
        self._at_ns, self._is_enough = at_ns, is_enough
        for event in events:
            recorder = recorders.get(event.recorder) or self._new_recorder(event.recorder)
            order = recorder.order
            in_turn = not order.early and event.sequence == order.expected
            if in_turn:  # the usual case: the next one of its recorder
                self._enter_engine(event, recorder)
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
                    self._receive(event, recorder, at_ns)
                else:  # the usual case: the next one of its request
                    self._enter(event, request, stream, recorder)
            if not in_turn:  # after its request: the following time may be part of the request's wait
                self._receive_for_engine(event, recorder, at_ns)
        if len(self.accounts) > self._max_requests:
            self._drop_surplus(len(self.accounts) - self._max_requests)
        return self._judgements.take()

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> tuple[list[RemoteHandoff], list[Finding]]:
        """Enter events of hand-offs that were passed to `on_handoff`: in the same sidecar before a restart, or in a sidecar
        with the other side's engines. Returns the new ones among them, and the findings as `feed` does."""
        return self._pairs.ingest_remote(those), self._judgements.take()

    def settle(self, *, before_ns: int | None = None, is_enough: Callable[[], bool] = _never) -> list[Finding]:
        """Stop waiting for missing events: everywhere, or where a waiting event arrived before `before_ns`. `is_enough` is
        called after each event or request. After it returns true, the rest is left to the next call (`is_unsettled`), and
        events that arrive until then queue behind it."""
        self._is_enough, self.is_unsettled = is_enough, False
        for recorder in self._recorders.values():
            order = recorder.order
            if not order.may_go_on and order.is_overdue(before_ns):
                order.skipped_to = max(order.early)
            if order.may_go_on:
                self._catch_up(recorder)
                self._deadlines.catch_up(recorder)
            if self.is_unsettled:
                return self._judgements.take()
        for key in list(self._gaps):
            if is_enough():
                self.is_unsettled = True
                break
            request = self._requests[key]
            for name, stream in request.streams.items():
                if stream.is_overdue(before_ns):
                    self._skip_gaps(request, stream, self._recorders.get(name) or TrackedRecorder(Engine()))
                    self.changed.append(key)
            if not any(stream.early for stream in request.streams.values()):
                del self._gaps[key]
        return self._judgements.take()

    def tick(self) -> list[Finding]:
        """Ask again how long the waiting requests have waited, at their recorders' last event. Deadline rules are asked at
        every heartbeat, so this is for the end of a history."""
        for recorder in self._recorders.values():
            if not recorder.order.early:
                self.changed += self._deadlines.ask(recorder, is_last=True)
        return self._judgements.take()

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """The number of verdicts by rule and verdict."""
        return self._rules.verdicts

    @property
    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """The number of undecided judgements by rule and reason."""
        return self._rules.unknown

    @property
    def missing(self) -> int:
        """The number of events declared missing, of all engines."""
        return self.lost.total()

    def engine(self, recorder: str) -> Engine:
        """The state of a recorder's engine, from this recorder's events."""
        return (self._recorders.get(recorder) or TrackedRecorder(Engine())).engine

    def waiting(self) -> Iterator[tuple[Account, int]]:
        """Accounts that may be waiting, each with the time of its recorder's last event."""
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
        """Why the request cannot be `ok`, apart from findings; None if it can."""
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
        """Whether an event with this number of its request, from this recorder, arrived before."""
        stream = self._stream(event)
        return stream is not None and (
            event.request_sequence < stream.expected or event.request_sequence in stream.early
        )

    def gave_up(self, event: Event) -> bool:
        """Whether the event's number was declared missing, or its position in the engine's order has passed."""
        stream, recorder = self._stream(event), self._recorders.get(event.recorder)
        late = recorder is not None and event.sequence < recorder.order.expected
        return late or (stream is not None and event.request_sequence < stream.expected)

    def over(self, *, before_ns: int) -> list[Key]:
        """The ended requests with no arrival since `before_ns` that expect nothing more, neither
        missing events nor a release. Their recorders' clocks may be wrong, and do not count."""
        ended = (key for key, at_ns in self.finished.items() if at_ns < before_ns)
        return [key for key in ended if key not in self._gaps and not self.accounts[key].is_waiting]

    def forget(self, key: Key) -> None:
        """Drop all state of a request."""
        for held in (self.accounts, self.finished, self._requests, self._gaps, self.findings):
            held.pop(key, None)  # type: ignore[attr-defined]

    def forget_finished(self, *, before_ns: int, but: Collection[Key] = ()) -> int:
        """Drop the requests that are `over`, except for some, and the recorders that ended before `before_ns`; returns the
        number of dropped requests."""
        leaving = [key for key in self.over(before_ns=before_ns) if key not in but]
        for key in leaving:
            self.forget(key)
        self.forget_recorders(
            [
                name
                for name, recorder in self._recorders.items()
                if recorder.engine.closed and recorder.closed_at_ns < before_ns and not recorder.order.early
            ]
        )
        return len(leaving)

    def forget_recorders(self, names: Iterable[str]) -> None:
        """Drop the state of engines, by their recorders' ids. An engine that reports again is new, as if it had been joined
        late."""
        for name in names:
            self._recorders.pop(name, None)

    def doubt(self, events: Iterable[Event]) -> None:
        """Note that the numbers of these events are not unique in their recorders: the state of these is incomplete."""
        doubted = {event.recorder: event for event in events}
        for name, event in doubted.items():
            if (recorder := self._recorders.get(name)) is not None:
                here = replace(event, sequence=recorder.order.expected)
                recorder.engine.mark_gap(Unknown.LOST, before=here)
                recorder.causes.mark_gap(NotRecorded.LOST, before=here)
        for key, account in self.accounts.items():
            if account.recorder in doubted:
                account.mark_gap(Unknown.LOST)
                self.changed.append(key)

    # Requests.

    def _open_account(self, key: Key) -> Account:
        """Make the account of a request that has none."""
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

    def _receive(self, event: Event, recorder: TrackedRecorder, at_ns: int) -> None:
        """Enter an event of a request if it is next, and the early ones that waited for it; otherwise let it wait."""
        key = (event.engine, event.request or "")
        request = self._requests.get(key)
        if request is None:
            account = self._open_account(key)
            request = self._requests[key] = TrackedRequest(account, event.launch)
            if event.sequence < recorder.order.expected - 1:
                account.mark_gap(Unknown.LOST)  # the request was forgotten: its other events do not arrive again
        elif request.is_past(event):
            return
        elif request.is_over_by(event):
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
        self._enter(event, request, stream, recorder)
        if stream.early:
            while (early := stream.early.pop(stream.expected, None)) is not None:
                self._enter(early[1], request, stream, recorder)
            if not any(other.early for other in request.streams.values()):
                del self._gaps[key]

    def _is_repeated(self, event: Event, stream: Stream, request: TrackedRequest) -> bool:
        """Whether the number arrived before. The same number on another span means that the numbers cannot be trusted."""
        number = event.request_sequence
        if number in stream.early:
            known: str | None = stream.early[number][1].span_id
        elif number < stream.expected:
            known = stream.known(number)
        else:
            return False
        if known is not None and known != event.span_id:
            request.account.mark_gap(Unknown.LOST)
        return True

    def _skip_gaps(self, request: TrackedRequest, stream: Stream, recorder: TrackedRecorder) -> None:
        joined_late = stream.expected == 0 and recorder.engine.missing is Unknown.LATE
        for number in sorted(stream.early):
            if number > stream.expected:
                request.account.mark_gap(Unknown.LATE if joined_late else Unknown.LOST, before=stream.early[number][1])
                if recorder.engine.missing is None:  # otherwise they are missing among the recorder's numbers, too
                    self.lost[request.account.engine] += number - stream.expected
                stream.skip(number)
            self._enter(stream.early.pop(number)[1], request, stream, recorder)

    def _begin_again(self, key: Key, request: TrackedRequest, event: Event) -> None:
        """Start a new account: the id is used for another request, by another launch of the engine."""
        request.past |= {request.launch, *request.streams} - {event.launch}
        request.launch, request.streams = event.launch, {}
        self._gaps.pop(key, None)
        self._new_account(key, request)

    def _new_account(self, key: Key, request: TrackedRequest) -> Account:
        if (recorder := self._recorders.get(request.account.recorder)) is not None:
            recorder.waiting.pop(key, None)
        self.finished.pop(key, None)
        self.accounts.pop(key, None)
        request.account = self._open_account(key)
        request.checked, request.waits_ns = False, 0
        return request.account

    def _enter(self, event: Event, request: TrackedRequest, stream: Stream, recorder: TrackedRecorder) -> None:
        """Judge the next event, and enter it into its account."""
        account, kind = request.account, event.kind
        if account.ended_ns is not None and event.role == SCHEDULER:
            account = self._reopen(event, request)
        if request.waits_ns:
            time = recorder.engine.time
            if time.now_ns - request.waits_ns >= self._deadlines.soonest_ns or time.number < event.sequence:
                self._deadlines.before(event, request, recorder)
        rules = self._request_rules if account.missing is None else self._incomplete_request_rules
        if judges := rules.get(kind):
            said = self._judgements.ask(judges, event, account)
            if said is OK:
                request.checked = True
            elif said is Unknown.RULE:
                request.broken = True
        try:
            for state, enter in self._of_requests.get(kind, ()):
                enter(account.states[state], event, account)
            fact = account.apply(event)
            if fact is not None and self._on_fact is not None:
                self._on_fact(fact, account)
            if self._listener is not None:
                self._listener(event, account)
        except Exception as error:
            self._judgements.failed("account", error)
            account.mark_gap(Unknown.RULE)
        if account.ended_ns is not None:
            self.finished[account.engine, account.request] = self._at_ns
            if event.lacks is not None and type(event) is RequestEnd:
                self._rules.request_over(event.lacks)
        if kind in MAY_WAIT and not request.waits_ns:
            self._deadlines.entered(event, request, recorder)
        recent = stream.recent
        recent.append(event.span_id)
        if len(recent) > REMEMBERED_NUMBERS:
            del recent[0]
        stream.expected = event.request_sequence + 1

    def _reopen(self, event: Event, request: TrackedRequest) -> Account:
        """Handle an event after the end: it is late, or the first of another request with the same id, or the end record was
        early."""
        account = request.account
        key = (account.engine, account.request)
        if isinstance(event, RequestStart):
            account = self._new_account(key, request)
            if len(request.streams) > 1:
                account.mark_gap(Unknown.REUSED)
        elif account.status == "abandoned":
            self._come_back(account)
        return account

    def _come_back(self, account: Account) -> None:
        """Handle an end record of the account's recorder that came too early."""
        account.status, account.outcome, account.ended_ns = "running", None, None
        self.finished.pop((account.engine, account.request), None)

    # Engines.

    def _new_recorder(self, name: str) -> TrackedRecorder:
        held = self._recorders[name] = TrackedRecorder(
            Engine(handoffs=self.handoffs, followers=self._of_engines, states=RuleStates(self._shared)),
            Causes(self._fleet),
        )
        return held

    def _receive_for_engine(self, event: Event, recorder: TrackedRecorder, at_ns: int) -> None:
        number, order = event.sequence, recorder.order
        if number != order.expected:
            if number > order.expected:
                order.early.setdefault(number, (at_ns, event))
            return
        self._enter_engine(event, recorder)
        order.expected += 1
        if order.may_go_on:
            self._catch_up(recorder)
        self._deadlines.catch_up(recorder)

    def _catch_up(self, recorder: TrackedRecorder) -> None:
        """Enter waiting events, in order, as far as they are next or the missing ones before them were given up."""
        order, engine = recorder.order, recorder.engine
        for number in sorted(order.early):
            if number > max(order.expected, order.skipped_to):
                break
            if self._is_enough():
                self.is_unsettled = True
                return
            _, event = order.early.pop(number)
            elapsed_ns = event.end_ns - engine.time.now_ns
            if order.expected > 0 and is_too_far(number, order.expected, elapsed_ns):
                engine.mark_gap(Unknown.LOST, before=event)
                recorder.causes.mark_gap(NotRecorded.LOST, before=event)
                continue  # the recorder cannot have reached this number yet: the next ones are still those after the last
            if number > order.expected:
                heard = max(order.expected, self._came_before.get(event.recorder, -1) + 1)
                if order.expected == 0 or number <= heard:
                    engine.mark_gap(Unknown.LATE, before=event)
                    recorder.causes.mark_gap(NotRecorded.LATE, before=event)
                else:
                    engine.mark_gap(Unknown.LOST, before=event)
                    recorder.causes.mark_gap(NotRecorded.LOST, before=event)
                    self.lost[event.engine] += number - heard
            self._enter_engine(event, recorder)
            order.expected = number + 1
        order.skipped_to = -1

    def _enter_engine(self, event: Event, recorder: TrackedRecorder) -> None:
        """Judge the next event, and enter it into its engine's state."""
        engine, kind = recorder.engine, event.kind
        rules = self._engine_rules if engine.blind is None else self._blind_engine_rules
        if judges := rules.get(kind):
            self._judgements.ask(judges, event, engine)
        if event.request is None and (judges := self._incomplete_request_rules.get(kind)):
            # Request rules that need only the event still judge it.
            account = Account(event.engine, "", missing=Unknown.UNSEEN, evidence=Evidence(short=engine.short))
            self._judgements.ask(judges, event, account)
        is_of_pairs = kind in self._pairs.kinds
        if is_of_pairs:
            self._pairs.before(event, engine)
        try:
            engine.apply(event)
            engine.time.enter(event)
            engine.clocks.enter(event, engine.time.now_ns, engine.loads, engine.kept)
        except Exception as error:
            self._judgements.failed("engine", error)
            engine.mark_gap(Unknown.RULE, before=event)
        if is_of_pairs:
            self._pairs.after(event, engine)
        if event.role == SCHEDULER or kind in KINDS_OF_ANY_ROLE:
            causes = recorder.causes
            try:
                causes.enter(event)
            except Exception as error:
                self._judgements.failed("causes", error)
                causes.mark_gap(NotRecorded.LOST, before=event)
            if causes.breakdowns:
                self._explain(event, causes)
        if event.request is not None:
            return
        if type(event) is Reset and self._on_reset is not None:
            self._on_reset(event)
        elif type(event) is Heartbeat:
            engine.closed, recorder.closed_at_ns = event.recorder_closed, self._at_ns
            if event.recorder_closed:
                self.abandon({event.recorder: event.end_ns}, semconv.CUT_OFF)
                return
            self._confirm(event, recorder)
            if recorder.waiting:
                self.changed += self._deadlines.ask(recorder)

    def _explain(self, event: Event, causes: Causes) -> None:
        """Enter the admissions with new parts, or with parts that this event made final."""
        for breakdown in causes.breakdowns:
            key = (event.engine, breakdown.event.request or "")
            if not breakdown.is_whole:
                self._judgements.failed("causes", ArithmeticError(f"parts do not make up the prompt of {key[1]}"))
            if (account := self.accounts.get(key)) is not None:
                account.explain(breakdown)
                self.changed.append(key)
            if breakdown.is_final:
                if self._on_causes is not None:
                    self._on_causes(event, breakdown)
                breakdown.shorten()
        causes.breakdowns.clear()

    def _confirm(self, beat: Heartbeat, recorder: TrackedRecorder) -> None:
        """Handle a heartbeat that names idle requests. If all their events arrived, none has been lost so far."""
        for name, events in zip(beat.idle_requests or (), beat.idle_events or (), strict=False):
            request = self._requests.get((beat.engine, name))
            stream = None if request is None else request.streams.get(beat.recorder)
            if request is None or stream is None or stream.expected < events:
                continue
            if request.account.status == "abandoned":
                self._come_back(request.account)
                self._deadlines.begin(request, recorder, recorder.engine.time.now_ns)
            evidence = request.account.evidence
            evidence.number = max(evidence.number, beat.recorder_recorded - 1)

    def abandon(self, ended: Mapping[str, int], outcome: str) -> None:
        """Close the accounts that recorders left open; `ended` has the end of each recorder in Unix nanoseconds, and
        `outcome` is the outcome of their requests."""
        left = [key for key, a in self.accounts.items() if a.recorder in ended and key not in self.finished]
        for key in left:
            self.accounts[key].abandon(ended[self.accounts[key].recorder], outcome)
            self.finished[key] = self._at_ns
        self.changed += left
