"""The life of an engine: its states, what leads to each of them, and the record of one launch.

What an engine reports of itself is final: an end record that names an exception is a death, one that names none is a good
end. A lost contact is a death if the last that came was a call of the connector that raised, since vLLM catches none of
these; otherwise nobody can tell it from a broken network. A process that ended without an end record died if it left requests
open: vLLM, asked to stop, kills its engine's process at once, unless it is given a `--shutdown-timeout`.
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
"""After so long without a heartbeat, contact is lost."""
STILL_GOING: frozenset[type[Event]] = frozenset({RequestStart, Lookup, Alloc, Schedule})
"""Events that only a scheduler records that goes on."""
_RAISING: frozenset[type[Event]] = frozenset({Lookup, Alloc, Failure})
"""Events that may carry an exception."""
_SHUTDOWN = "shutdown"
"""The call that informs a connector that its engine ends: what it raises ends nothing more."""


class EngineState(StrEnum):
    """The state of an engine. The values are stored, and part of the api."""

    RUNNING = "running"
    LOST_CONTACT = "silent"
    """Its heartbeats stopped, and nothing explains that."""
    DIED = "died"
    """An exception ended it, or it ended without an end record and requests were lost with it."""
    DRAINED = "drained"
    """Its end record names no exception, or nothing was lost with it."""
    REPLACED = "replaced"
    """It stopped reporting, and another engine came in its place."""
    NOT_OBSERVED = "unseen"
    """It sends no heartbeats and has none to send, or nobody who could know receives them."""


FINAL = (EngineState.DIED, EngineState.DRAINED)
"""What an engine itself has reported; no silence changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a launch at one moment.

    Attributes:
        is_closed: whether it sent its end record: all recorders that speak for it did.
        ended_by: what the end record says the engine ended of.
        raised: the exception of the last call of its connector, if the engine has not gone on since.
        reports: whether anything came of it lately (`CONTACT_NS`).
        sends_heartbeats: whether a heartbeat ever came.
        is_replaced: whether another engine or launch came in its place.
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
        """What ended the engine: what a call raised says more than that the process has gone."""
        return self.raised if self.raised is not None and self.ended_by in (None, NO_END_RECORD) else self.ended_by

    @property
    def was_killed(self) -> bool:
        """Whether its process ended without an end record."""
        return self.ended_by == NO_END_RECORD


class Transition(NamedTuple):
    """A cause in words, and the state that it leads to when its condition holds."""

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
"""From any state, the first cause with a condition that holds decides; `supersedes` says what a final state gives way to."""


def transition(evidence: Evidence) -> Transition:
    """The cause that holds by this evidence, and its state."""
    return next(each for each in TRANSITIONS if each.holds(evidence))


def supersedes(state: EngineState, known: EngineState, *, from_scheduler: bool) -> bool:
    """Whether a state replaces the one that was known of the same launch: a final one gives way only to what comes from the
    scheduler's side, which shows that it was none."""
    return known not in FINAL or state in FINAL or from_scheduler


def goes_on(event: Event) -> bool:
    """Whether an event shows that its engine goes on."""
    return event.error is None and type(event) in STILL_GOING


def is_fatal(event: Event) -> bool:
    """Whether an event carries an exception that ends an engine: vLLM catches none. Who caught one that is printed in a log
    is not known."""
    if event.error is None or type(event) not in _RAISING or not shows_catches(event.lacks):
        return False
    return not (isinstance(event, Failure) and event.call == _SHUTDOWN)


class LossCause(StrEnum):
    """How an engine was lost: a label of the metrics."""

    EXCEPTION = "exception"
    KILLED = "killed"
    """Its process ended without an end record, and requests were lost with it."""
    LOST_CONTACT = "lost_contact"
    """It was killed with everything around it, or the network between is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausingFinding:
    """The finding that a death is attributed to: its id, its rule and title, and its request; empty if it has none."""

    id: str
    rule: str
    title: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of an engine. Times are Unix nanoseconds, by the engine's clock.

    Attributes:
        engine: vLLM's engine id.
        launch: how its recorders name the launch; empty in an older vLLM; all its launches are one then.
        state: how it is, or how it ended.
        began_ns: beginning of the first event that came.
        ended_ns: end of the last event, once it has ended or contact is lost.
        ended_by: the exception that ended it, its class and the beginning of its text.
        lost: requests that were open when it ended, or had blocks that it held for another engine.
        cause: of its death; None if nothing was found that might have caused it.
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
        """How it was lost; None while it runs, and for an end that a rollout, a drain or a scale-down explains."""
        if self.state is EngineState.LOST_CONTACT:
            return LossCause.LOST_CONTACT
        if self.state is not EngineState.DIED:
            return None
        return LossCause.KILLED if self.ended_by == NO_END_RECORD else LossCause.EXCEPTION


def last_launches(launches: Iterable[Launch]) -> dict[str, Launch]:
    """By engine, its last launch."""
    last: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda each: each.began_ns):
        last[launch.engine] = launch
    return last


_PRECEDENCE = (
    EngineState.DIED,
    EngineState.DRAINED,
    EngineState.RUNNING,
    EngineState.REPLACED,
    EngineState.LOST_CONTACT,
    EngineState.NOT_OBSERVED,
)


def agreed(reports: Collection[Launch]) -> Launch:
    """One launch as several sidecars know it: an end that the engine reported itself, or else that one of them hears it."""
    return min(reports, key=lambda each: (_PRECEDENCE.index(each.state), -(each.ended_ns or 0)))


def at_present(
    launch: Launch, *, is_heard: bool, heard_ns: int, note_every_ns: int, open_requests: int, now_ns: int
) -> Launch:
    """A stored launch as it is now, for a process that was not there, or has not looked, since it was stored: a sidecar that
    was started a moment ago, or the api over those of a fleet, which may have gone with their engines.

    Args:
        is_heard: whether the engine reports now.
        heard_ns: when it was last noted that it did, which is done every `note_every_ns`.
        open_requests: how many of its requests are open, as far as is stored.
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
