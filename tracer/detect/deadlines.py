"""Deadlines: tracks waiting requests, and asks the deadline rules how long they have waited.

Time is the recorder's, and counts while the awaited event was possible (`recorder_clocks`).
The rules are asked at every heartbeat, and when the next event of a request arrives, since that may end the wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvtrail.tracer.detect.judgements import Judgements
from kvtrail.tracer.detect.tracked import Key, TrackedRecorder, TrackedRequest, Wait
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.rules.rule import DeadlineRule
from kvtrail.tracer.rules.rule_set import Tally

MAY_WAIT = {
    Kind.REQUEST_START, Kind.LOOKUP, Kind.ALLOC, Kind.PREEMPT, Kind.RECEIVED, Kind.LOAD_ERROR, Kind.REQUEST,
}  # fmt: skip
"""Kinds of events after which a request may wait for something with a deadline."""


class Deadlines:
    """Asks the deadline rules about waiting requests.

    Attributes:
        soonest_ns: the shortest deadline of all rules.
    """

    def __init__(
        self,
        rules: Sequence[tuple[Tally, DeadlineRule]],
        requests: Mapping[Key, TrackedRequest],
        judgements: Judgements,
    ) -> None:
        self.soonest_ns = min((int(rule.after_s * 1e9) for _, rule in rules), default=0)
        self._rules = rules
        self._requests = requests
        self._judgements = judgements

    def entered(self, event: Event, request: TrackedRequest, recorder: TrackedRecorder) -> None:
        """Note, after such an event has entered its account, that the request may be waiting from now on."""
        if event.role == SCHEDULER:
            time = recorder.engine.time
            self.begin(request, recorder, time.of(event) if time.number >= event.sequence else time.now_ns)

    def begin(self, request: TrackedRequest, recorder: TrackedRecorder, at_ns: int) -> None:
        """Note that a request may be waiting since a moment of its recorder's time."""
        request.waits_ns = at_ns or 1
        recorder.waiting[request.account.engine, request.account.request] = None

    def before(self, event: Event, request: TrackedRequest, recorder: TrackedRecorder) -> None:
        """Ask how long a request has waited when its next event arrives. The end of its engine does not end the wait: the
        engine may have hung before, or the event that ended the wait may be lost."""
        if event.recorder != request.account.recorder or event.kind is Kind.CUT_OFF:
            return
        time = recorder.engine.time
        if time.number < event.sequence:  # it arrived early
            recorder.asked_later += [(event, wait) for wait in self._waits(request.account, recorder.engine)]
        elif time.of(event) - request.waits_ns >= self.soonest_ns:
            for wait in self._waits(request.account, recorder.engine):
                self._judge(wait, event, recorder)

    def catch_up(self, recorder: TrackedRecorder) -> None:
        """Ask how long requests had waited at the arrival of events that have been entered in the meantime."""
        time, asked = recorder.engine.time, recorder.asked_later
        recorder.asked_later = [(event, wait) for event, wait in asked if event.sequence > time.number]
        for event, wait in asked:
            if event.sequence <= time.number:
                self._judge(wait, event, recorder)

    def ask(self, recorder: TrackedRecorder, *, is_last: bool = False) -> list[Key]:
        """Ask how long requests have waited at the recorder's last event; `is_last` at the end of a history. Returns requests
        that have waited too long."""
        late: list[Key] = []
        engine = recorder.engine
        if engine.raised:
            return late
        for key in list(recorder.waiting):
            request = self._requests.get(key)
            if request is None:
                del recorder.waiting[key]
                continue
            if not is_last and engine.time.now_ns - request.waits_ns < self.soonest_ns:
                break
            if engine.lost_number > request.account.evidence.number:
                continue  # the awaited event may have been recorded and lost
            waits = self._waits(request.account, engine)
            late += [key for wait in waits if self._judge(wait, None, recorder, is_last=is_last)]
            if not waits:
                request.waits_ns = 0
                del recorder.waiting[key]
        return late

    def _waits(self, account: Account, engine: Engine) -> list[Wait]:
        """The waits of a request, as far as they follow from events after the last missing one."""
        if account.status == "abandoned":
            return []
        waits, known_from = [], account.evidence.known_from
        for tally, rule in self._rules:
            try:
                pending = rule.pending(account, engine)
                if pending is not None and all(
                    e.sequence >= known_from for e in (pending.since, *pending.drift.witness)
                ):
                    waits.append(Wait(tally, pending))
            except Exception as error:
                self._judgements.failed(tally, error)
        return waits

    def _judge(self, wait: Wait, until: Event | None, recorder: TrackedRecorder, *, is_last: bool = True) -> bool:
        """Whether a request has waited too long, up to an event or up to now. After the wait ends, its finding has the total
        time. If a request waits several times in an epoch, the finding is about the first wait."""
        engine, pending = recorder.engine, wait.pending
        time, since = engine.time, pending.since
        if since.sequence > time.number:  # its account is ahead of the recorder's time
            return False
        number, until_ns = (time.number, time.now_ns) if until is None else (until.sequence, time.of(until))
        waited_s = (until_ns - time.of(since)) / 1e9
        if waited_s < pending.within_s:
            return False
        from_ns = time.of(engine.flow.turn(since, by_number=number) if pending.after_earlier_transfers else since)
        counted_ns = pending.counted.between(from_ns, until_ns)
        counted_s = max(counted_ns / 1e9, min(pending.min_active_s, (until_ns - from_ns) / 1e9))
        if counted_s < pending.within_s:
            return False
        numbers = {"waited_s": round(waited_s, 1), "counted_s": round(counted_s), **pending.drift.numbers}
        drift = replace(pending.drift, numbers=numbers)
        try:
            fresh = wait.tally.rule.finding(drift)
            known = self._judgements.known(fresh)
            if known is None:
                self._judgements.record(wait.tally, drift)
            elif fresh.first_ns < known.first_ns or (
                is_last and fresh.first_ns == known.first_ns and fresh.numbers != known.numbers
            ):
                self._judgements.update(wait.tally, known, fresh)
        except Exception as error:
            self._judgements.failed(wait.tally, error)
        return True
