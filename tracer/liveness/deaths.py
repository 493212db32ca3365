"""The deaths of engines in a recorded history, and the requests lost with them. Events may arrive in any order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.liveness.engine import EngineState, Evidence, goes_on, is_fatal, transition
from kvtrail.tracer.liveness.request_outcome import has_failed, is_lost
from kvtrail.tracer.model.findings import Finding, Severity

E = TypeVar("E", bound=Event)
CAUSE_NS = 60 * 10**9
"""Maximum time between a finding and a death that it is the cause of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An engine's death.

    Attributes:
        engine: vLLM's engine id.
        at_ns: Unix nanoseconds.
        ended_by: the exception that ended it: its class and the start of its text.
        lost: ids of the requests that were lost with it (`is_lost`).
        cause: see `cause_of`.
    """

    engine: str
    at_ns: int
    ended_by: str
    lost: tuple[str, ...]
    cause: Finding | None


@dataclass(slots=True)
class _Side:
    """The known facts about the end of one recorder on a scheduler's side."""

    engine: str
    went_on: int = -1
    """The number of the last event that shows that the engine was still running."""
    raised: Event | None = None
    end_record: Heartbeat | None = None
    lost: dict[str, bool] = field(default_factory=dict)
    """The lost requests, and for each whether a call about it raised."""


def _last(known: E | None, event: E) -> E:
    """The later one of two events of a recorder."""
    return event if known is None or known.sequence < event.sequence else known


def cause_of(findings: Iterable[Finding], engine: str, ended_ns: int, failed: Container[str]) -> Finding | None:
    """The last finding before an engine's death that can have caused it, preferably of a request about which a call raised
    (`failed`); None if there is none."""
    causes = (
        finding
        for finding in findings
        if finding.engine == engine
        and finding.severity is Severity.CRASH
        and finding.healed < finding.count
        and ended_ns - CAUSE_NS <= finding.last_ns <= ended_ns
    )
    return max(causes, key=lambda each: (each.request in failed, each.last_ns, each.id), default=None)


class Deaths:
    """Detects the deaths of engines in a history."""

    def __init__(self) -> None:
        self._sides: dict[str, _Side] = {}
        """By recorder."""

    def enter(self, event: Event) -> None:
        """Enter an event."""
        if event.error is not None:
            if event.role == SCHEDULER and is_fatal(event):
                side = self._side(event)
                side.raised = _last(side.raised, event)
        elif goes_on(event):
            side = self._side(event)
            side.went_on = max(side.went_on, event.sequence)
        elif isinstance(event, Heartbeat) and event.recorder_closed:
            side = self._side(event)
            side.end_record = _last(side.end_record, event)

    def leave(self, account: Account) -> None:
        """Enter the last known state of a request."""
        side = self._sides.get(account.recorder)
        if side is not None and is_lost(account):
            side.lost[account.request] = has_failed(account.status)

    def all(self, findings: Iterable[Finding]) -> list[Death]:
        """The deaths of all engines, in the order in which they happened."""
        return sorted(self._deaths(list(findings)), key=lambda death: (death.at_ns, death.engine))

    def _side(self, event: Event) -> _Side:
        side = self._sides.get(event.recorder)
        if side is None:
            side = self._sides[event.recorder] = _Side(event.engine)
        return side

    def _deaths(self, findings: Sequence[Finding]) -> Iterator[Death]:
        ran = {side.engine for side in self._sides.values() if side.went_on >= 0}
        for side in self._sides.values():
            # An event after an end record, or after an exception, shows that the engine was still running.
            raised = side.raised if side.raised and side.raised.sequence > side.went_on else None
            end_record = side.end_record if side.end_record and side.end_record.sequence > side.went_on else None
            last = end_record or raised
            evidence = Evidence(
                is_closed=end_record is not None,
                ended_by=None if end_record is None else end_record.recorder_ended_by,
                raised=None if raised is None else raised.error,
                lost=len(side.lost),
            )
            # The end record of a log marks it as the scheduler's. An engine that dies as it starts has no scheduler's events.
            says_so = side.end_record is not None and side.end_record.role == SCHEDULER
            is_schedulers = side.went_on >= 0 or raised is not None or says_so or side.engine not in ran
            if last is None or not is_schedulers or transition(evidence).state is not EngineState.DIED:
                continue
            ran.add(side.engine)  # each of its processes has an end record
            failed = {request for request, has_raised in side.lost.items() if has_raised}
            yield Death(
                engine=side.engine,
                at_ns=last.end_ns,
                ended_by=evidence.exception or "",
                lost=tuple(sorted(side.lost)),
                cause=cause_of(findings, side.engine, last.end_ns, failed),
            )
