"""How the engines of a recorded history ended: of what they died, and what was lost by it. Events may come in any order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event, Failure, Heartbeat, Lookup, RequestStart, Schedule
from kvtrail.tracer.events.semconv import CUT_OFF, NO_GOODBYE, UNHEARD
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.model.findings import Finding, Severity
from kvtrail.tracer.model.outcomes import ABORTED

CAUSE_NS = 60 * 10**9
"""How long before a death its cause may have been found."""
GOES_ON: frozenset[type[Event]] = frozenset({RequestStart, Lookup, Alloc, Schedule})
"""What only the scheduler's side of an engine records that goes on."""
_RAISES: frozenset[type[Event]] = frozenset({Lookup, Alloc, Failure})
"""What tells of an exception."""
_SHUTDOWN = "shutdown"
"""The call by which a connector is told that its engine ends: what it raises ends nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An engine's death.

    Attributes:
        engine: vLLM's engine id.
        at_ns: Unix nanoseconds.
        ended_by: the exception that ended it, its class and the beginning of its text.
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
    """What is known of the end of one recorder on a scheduler's side."""

    engine: str
    went_on: int = -1
    """The number of the last event that only an engine records that goes on."""
    raised: Event | None = None
    goodbye: Heartbeat | None = None
    open: dict[str, bool] = field(default_factory=dict)
    """The requests that were lost with it, and whether a call about each raised."""


def is_fatal(event: Event) -> bool:
    """Whether an event tells of an exception that ends an engine, if nobody catches it: vLLM does not."""
    if event.error is None or type(event) not in _RAISES:
        return False
    return not (isinstance(event, Failure) and event.call == _SHUTDOWN)


def is_lost(account: Account) -> bool:
    """Whether a request is lost with its engine: it was open, or its blocks were kept for another engine to read, as a
    prefill engine keeps them for decode."""
    kept = account.evidence.end
    is_kept_for_another = kept is not None and kept.handoff is True and kept.outcome != ABORTED
    return account.ended_ns is None or account.outcome in (CUT_OFF, UNHEARD) or is_kept_for_another


def cause_of(findings: Iterable[Finding], engine: str, ended_ns: int, failed: Container[str]) -> Finding | None:
    """The last finding before an engine's death that can have caused it, first of all of a request about which a call raised
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


class Endings:
    """Follows a history for the ends of its engines."""

    def __init__(self) -> None:
        self._sides: dict[str, _Side] = {}
        """By recorder."""

    def note(self, event: Event) -> None:
        """Enter an event."""
        kind = type(event)
        if event.error is not None:
            if event.role == SCHEDULER and is_fatal(event):
                side = self._side(event)
                if side.raised is None or side.raised.sequence < event.sequence:
                    side.raised = event
        elif kind in GOES_ON:
            side = self._side(event)
            if side.went_on < event.sequence:
                side.went_on = event.sequence
        elif isinstance(event, Heartbeat) and event.recorder_closed:
            side = self._side(event)
            if side.goodbye is None or side.goodbye.sequence < event.sequence:
                side.goodbye = event

    def leave(self, account: Account) -> None:
        """A request is not heard of any more."""
        side = self._sides.get(account.recorder)
        if side is not None and is_lost(account):
            side.open[account.request] = account.status == "failed"

    def deaths(self, findings: Iterable[Finding]) -> list[Death]:
        """The deaths of all engines, in the order in which they happened."""
        return sorted(self._deaths(list(findings)), key=lambda death: (death.at_ns, death.engine))

    def _side(self, event: Event) -> _Side:
        side = self._sides.get(event.recorder)
        if side is None:
            side = self._sides[event.recorder] = _Side(event.engine)
        return side

    def _deaths(self, findings: Sequence[Finding]) -> Iterator[Death]:
        for side in self._sides.values():
            # What came after a goodbye, or after an exception, takes it back.
            raised = side.raised if side.raised and side.raised.sequence > side.went_on else None
            goodbye = side.goodbye if side.goodbye and side.goodbye.sequence > side.went_on else None
            ended_by = goodbye.recorder_ended_by if goodbye else None
            if raised is not None and ended_by in (None, NO_GOODBYE):
                ended_by = raised.error
            last = goodbye or raised
            is_schedulers = side.went_on >= 0 or raised is not None
            if ended_by is None or last is None or not is_schedulers:
                continue
            if ended_by == NO_GOODBYE and not side.open:  # it was idle, and nothing shows that it did not just end
                continue
            failed = {request for request, has_failed in side.open.items() if has_failed}
            yield Death(
                engine=side.engine,
                at_ns=last.end_ns,
                ended_by=ended_by,
                lost=tuple(sorted(side.open)),
                cause=cause_of(findings, side.engine, last.end_ns, failed),
            )
