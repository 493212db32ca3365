"""The states of an engine, the evidence for each of them, and the record of one launch.

An engine's own report is final: an end record that names an exception is a death; without an exception it is a normal
end. A lost contact is a death if the last event was a call of the connector that raised, since vLLM catches no such
exception; otherwise it cannot be distinguished from a broken network. A process that ended without an end record died if it
left requests open: when asked to stop, vLLM kills its engine's process at once, unless it has a `--shutdown-timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kvtrail.tracer.events.events import Alloc, Event, Failure, Lookup, RequestStart, Schedule
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.events.unsupported import shows_catches

CONTACT_NS = 30 * 10**9
"""Time without a heartbeat after which contact is lost."""
STILL_GOING: frozenset[type[Event]] = frozenset({RequestStart, Lookup, Alloc, Schedule})
"""Events that only a running scheduler records."""
_RAISING: frozenset[type[Event]] = frozenset({Lookup, Alloc, Failure})
"""Events that may carry an exception."""
_SHUTDOWN = "shutdown"
"""The call that informs a connector that its engine ends: its exceptions have no further effect."""


class EngineState(StrEnum):
    """The state of an engine. The values are stored, and part of the API."""

    RUNNING = "running"
    LOST_CONTACT = "lost_contact"
    """Its heartbeats stopped without an explanation."""
    DIED = "died"
    """An exception ended it, or it ended without an end record and requests were lost with it."""
    DRAINED = "drained"
    """Its end record names no exception, or it ended without losing a request."""
    REPLACED = "replaced"
    """It stopped reporting, and another engine replaced it."""
    NOT_OBSERVED = "unseen"
    """It sends no heartbeats by design, or no running sidecar receives them."""


FINAL = (EngineState.DIED, EngineState.DRAINED)
"""States that the engine itself reported; a lost contact does not change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence about a launch at one moment.

    Attributes:
        is_closed: whether all recorders that represent it sent their end records.
        ended_by: the exception that the end record names.
        raised: the exception of the last call of its connector, if the engine has not continued since.
        reports: whether an event arrived lately (`CONTACT_NS`).
        sends_heartbeats: whether a heartbeat ever arrived.
        is_replaced: whether another engine or launch replaced it.
        heartbeats_due: whether a heartbeat is missing.
        lost: requests that were lost with it; None while they are not counted.
    """

    is_closed: bool = False
    ended_by: str | None = None
    raised: str | None = None
    reports: bool = False
    sends_heartbeats: bool = False
    is_replaced: bool = False
    heartbeats_due: bool = True
    lost: int | None = None

    @property
    def exception(self) -> str | None:
        """The exception that ended the engine: that of a call is more specific than the end of the process."""
        return self.raised if self.raised is not None and self.ended_by in (None, NO_END_RECORD) else self.ended_by

    @property
    def was_killed(self) -> bool:
        """Whether its process ended without an end record."""
        return self.ended_by == NO_END_RECORD


class Transition(NamedTuple):
    """A description of evidence, and the resulting state if its condition holds."""

    cause: str
    state: EngineState
    holds: Callable[[Evidence], bool]


TRANSITIONS = (
    Transition(
        "its end record names an exception",
        EngineState.DIED,
        lambda seen: seen.ended_by is not None and not seen.was_killed,
    ),
    Transition(
        "its process ended without an end record, after a call that raised",
        EngineState.DIED,
        lambda seen: seen.was_killed and seen.raised is not None,
    ),
    Transition(
        "its process ended without an end record, and no request was open",
        EngineState.DRAINED,
        lambda seen: seen.was_killed and seen.lost == 0,
    ),
    Transition(
        "its process ended without an end record, and requests were open",
        EngineState.DIED,
        lambda seen: seen.was_killed,
    ),
    Transition(
        "it sent its end record after a call that raised",
        EngineState.DIED,
        lambda seen: seen.is_closed and seen.raised is not None,
    ),
    Transition("it sent its end record", EngineState.DRAINED, lambda seen: seen.is_closed),
    Transition("it sends heartbeats", EngineState.RUNNING, lambda seen: seen.reports and seen.sends_heartbeats),
    Transition("it sends events and no heartbeats", EngineState.NOT_OBSERVED, lambda seen: seen.reports),
    Transition("nothing came after a call that raised", EngineState.DIED, lambda seen: seen.raised is not None),
    Transition(
        "nothing more came, and another engine came in its place", EngineState.REPLACED, lambda seen: seen.is_replaced
    ),
    Transition(
        "nothing came for a while, and no heartbeat was due",
        EngineState.NOT_OBSERVED,
        lambda seen: not seen.heartbeats_due,
    ),
    Transition("heartbeats were due, and none came", EngineState.LOST_CONTACT, lambda seen: True),
)
"""In any state, the first entry whose condition holds decides; `supersedes` says which states replace a final one."""


def transition(evidence: Evidence) -> Transition:
    """The first entry that applies to this evidence, with its state."""
    return next(each for each in TRANSITIONS if each.holds(evidence))


def supersedes(state: EngineState, known: EngineState, *, from_scheduler: bool) -> bool:
    """Whether a state replaces the known state of the same launch: a final state is replaced only by an event from the
    scheduler's side, which proves it wrong."""
    return known not in FINAL or state in FINAL or from_scheduler


def goes_on(event: Event) -> bool:
    """Whether an event shows that its engine is still running."""
    return event.error is None and type(event) in STILL_GOING


def is_fatal(event: Event) -> bool:
    """Whether an event carries an exception that ends an engine: vLLM catches none. An exception in a log does not count,
    since it may have been caught."""
    if event.error is None or type(event) not in _RAISING or not shows_catches(event.lacks):
        return False
    return not (isinstance(event, Failure) and event.call == _SHUTDOWN)


class LossCause(StrEnum):
    """The way in which an engine was lost: a label of the metrics."""

    EXCEPTION = "exception"
    KILLED = "killed"
    """Its process ended without an end record, and requests were lost with it."""
    LOST_CONTACT = "lost_contact"
    """It was killed together with its export process, or the network is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausingFinding:
    """The finding that a death is attributed to: its id, rule, title and request; the request may be empty."""

    id: str
    rule: str
    title: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of an engine. Times are Unix nanoseconds, by the engine's clock.

    Attributes:
        engine: vLLM's engine id.
        launch: the launch's name in its recorders' spans; empty for an older vLLM: then all its launches are one.
        state: its current or final state.
        began_ns: start of the first received event.
        ended_ns: end of the last event, once it has ended or contact is lost.
        ended_by: the exception that ended it: its class and the start of its text.
        lost: number of requests that were open when it ended, or had blocks that it held for another engine.
        cause: the finding that may have caused its death; None if there is none.
        settings: the versions and settings it was launched with (`model.engines.launched_with`).
    """

    engine: str
    launch: str
    state: EngineState
    began_ns: int
    ended_ns: int | None = None
    ended_by: str | None = None
    lost: int = 0
    cause: CausingFinding | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def loss(self) -> LossCause | None:
        """How it was lost; None while it runs, and after an end that a rollout, a drain or a scale-down explains."""
        if self.state is EngineState.LOST_CONTACT:
            return LossCause.LOST_CONTACT
        if self.state is not EngineState.DIED:
            return None
        return LossCause.KILLED if self.ended_by == NO_END_RECORD else LossCause.EXCEPTION


def last_launches(launches: Iterable[Launch]) -> dict[str, Launch]:
    """The last launch of each engine."""
    return {launch.engine: launch for launch in sorted(launches, key=lambda each: each.began_ns)}


_PRECEDENCE = (
    EngineState.DIED,
    EngineState.DRAINED,
    EngineState.RUNNING,
    EngineState.REPLACED,
    EngineState.LOST_CONTACT,
    EngineState.NOT_OBSERVED,
)


def agreed(reports: Collection[Launch]) -> Launch:
    """One launch as known to several sidecars: an end that the engine itself reported has precedence, then a sidecar to which
    it still reports."""
    return min(reports, key=lambda each: (_PRECEDENCE.index(each.state), -(each.ended_ns or 0)))


def at_present(
    launch: Launch, *, is_heard: bool, heard_ns: int, note_every_ns: int, open_requests: int, now_ns: int
) -> Launch:
    """The current state of a stored launch, for a process that has not observed it since it was stored: a sidecar that has
    just started, or the API over a fleet, whose sidecars may have ended with their engines.

    Args:
        is_heard: whether the engine reports now.
        heard_ns: the last recorded time at which it reported, updated every `note_every_ns`.
        open_requests: the number of its open requests in the store.
        now_ns: the time; Unix nanoseconds.
    """
    if launch.state in FINAL:
        return launch
    if is_heard:
        return replace(launch, state=EngineState.RUNNING, ended_ns=None, lost=0)
    if launch.state is not EngineState.RUNNING:
        return launch
    if now_ns - heard_ns <= CONTACT_NS + note_every_ns:
        return replace(launch, state=EngineState.NOT_OBSERVED)
    return replace(launch, state=EngineState.LOST_CONTACT, ended_ns=heard_ns, lost=open_requests)
