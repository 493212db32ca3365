"""The sidecar's state of each recorder: whether it reports, its lost events, and the engine that replaced its engine.

A recorder sends a heartbeat every five seconds and an end record. Without both, a crash cannot be distinguished from a broken
network: contact is lost. That is explained once the engine sent an end record through another recorder, or was replaced:
another engine of the same service and model appeared about the time when it stopped reporting. No heartbeat is due from a
recorder that never sent one: it does not know that kvtrail receives it. Arrival times are by this machine's monotonic clock;
engines' clocks are not used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.ledger.ordering import Gaps
from kvtrail.tracer.liveness.engine import CONTACT_NS, goes_on, is_fatal
from kvtrail.tracer.model.engines import described, launched_with, memory_limit, pool_blocks, shown_name
from kvtrail.tracer.model.grouping import by_key

INFO = (
    "engine_name", "model_name", "service_name", "service_instance_id", "k8s_pod_name", "host_name", "vllm_version",
    "kvtrail_version",
)  # fmt: skip
"""The labels that describe an engine, in the order of `RecorderState.info`."""

TERMINATED_NS = 15 * 60 * 10**9
"""Time without contact after which a recorder counts as ended, even without an explanation."""
FORGET_CLOSED_NS = 60 * 10**9
FORGET_SILENT_NS = 3600 * 10**9
"""Times without contact after which closed recorders, and all others, are forgotten."""
OVERLAP_NS = 10 * 60 * 10**9
"""In a rollout the new engine may start this long before the old one ends."""
MAX_RECORDERS = 10_000
MAX_UNRECORDED = 100
"""Maximum number of kinds of unrecorded data, and of unknown names, with separate counts; normally there are fewer."""


class Contact(StrEnum):
    """Whether a recorder reports. The values are part of the API."""

    RUNNING = "running"
    LOST = "lost_contact"
    """No heartbeat, without an explanation."""
    QUIET = "quiet"
    """Nothing arrived for a while, as expected, since it sends no heartbeats."""
    TERMINATED = "terminated"
    """No heartbeat; its engine sent an end record, was replaced, or has not reported for so long that it will not come
    back."""
    CLOSED = "closed"
    """It sent its end record."""


@dataclass(slots=True)
class RecorderState:
    """One recorder, which is one process of an engine. Counts are events, times are Unix nanoseconds.

    Attributes:
        id, engine: ids from its spans.
        description: the engine's description: the fields of `model.engines.DESCRIPTION`.
        first, highest: the lowest and the highest sequence number received.
        received: number of received events.
        dropped: number of events that the recorder reports as dropped.
        dropped_by: the same, by reason.
        unrecorded: the number of unrecorded items that the recorder reports, by kind.
        unknown: names in its spans that only another version of kvtrail knows, with their counts.
        probes_off: the connectors with a probe that switched itself off.
        gives_signs: whether a heartbeat ever arrived.
        memory_limit: bytes that its connector may hold in host memory, on each worker; None if its settings do not say.
        pool_blocks: KV blocks of its engine's pool; None if it does not report them.
        held_bytes: bytes that it held at the last heartbeat with this value; None if there was none.
        launch: the name of its engine's launch; may be empty.
        launched_with: the versions and settings of that launch (`model.engines.launched_with`).
        is_scheduler: whether it is known to be the recorder on the scheduler's side, which represents its engine.
        ended_by: the exception that its end record names; None for a normal end.
        raised: the number of the last event with an exception of the connector, and this exception, if the engine
            has not continued since.
        contact: whether it reports.
        gaps: the sequence numbers that have not arrived.
        connectors: names of the connectors it records.
        first_ns: start of its first received event, by the recorder's clock.
        last_ns: end of its latest event, by the recorder's clock.
        heard_ns: arrival of its latest span, by this machine's clock.
        lag_ns: from the end of the latest event to its arrival.
        began_at, heard_at: arrival of its first and of its latest span, by this machine's monotonic clock.
    """

    id: str
    engine: str
    description: dict[str, str]
    first: int
    highest: int
    received: int = 0
    dropped: int = 0
    dropped_by: dict[str, int] = field(default_factory=dict)
    unrecorded: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    probes_off: tuple[str, ...] = ()
    gives_signs: bool = False
    contact: Contact = Contact.RUNNING
    gaps: Gaps = field(default_factory=Gaps)
    connectors: set[str] = field(default_factory=set)
    memory_limit: int | None = None
    pool_blocks: int | None = None
    held_bytes: int | None = None
    launch: str = ""
    launched_with: dict[str, str] = field(default_factory=dict)
    is_scheduler: bool = False
    ended_by: str | None = None
    raised: tuple[int, str] | None = None
    first_ns: int = 0
    last_ns: int = 0
    heard_ns: int = 0
    lag_ns: int = 0
    began_at: int = 0
    heard_at: int = 0

    @classmethod
    def of(cls, event: Event, resource: Mapping[str, Any], *, at_ns: int = 0) -> RecorderState:
        """The state of a new recorder before its first `event` is counted, which arrived at `at_ns` of the monotonic
        clock."""
        return cls(
            id=event.recorder,
            engine=event.engine,
            description=described(resource),
            first=event.sequence,
            highest=event.sequence,
            memory_limit=memory_limit(resource),
            pool_blocks=pool_blocks(resource),
            launch=event.launch or "",
            launched_with=launched_with(resource),
            first_ns=event.start_ns,
            began_at=at_ns,
        )

    def count(self, events: Sequence[Event], *, heard_ns: int, at_ns: int = 0) -> int | None:
        """Count events that arrived together at `heard_ns`, and at `at_ns` of the monotonic clock. Returns the number of
        newly dropped events that their heartbeats report, or None without a heartbeat."""
        self.received += len(events)
        self.heard_ns, self.heard_at = heard_ns, at_ns
        if self.contact is not Contact.CLOSED:
            self.contact = Contact.RUNNING
        numbers = [event.sequence for event in events]
        ends_ns = [event.end_ns for event in events]
        self.gaps.enter_all(numbers, ends_ns)
        self.first = min(self.first, min(numbers))
        self.highest = max(self.highest, max(numbers))
        if (last_ns := max(ends_ns)) >= self.last_ns:
            self.last_ns, self.lag_ns = last_ns, max(0, heard_ns - last_ns)
        self.connectors |= {event.connector for event in events} - {""}
        before, beats = self.dropped, 0
        for event in [event for event in events if type(event) is Heartbeat or event.error is not None]:
            if isinstance(event, Heartbeat):
                self._count_beat(event)
                beats += 1
            elif is_fatal(event):
                self.raised = (event.sequence, event.error or "")
        if self.raised is not None:
            since, _ = self.raised
            if any(goes_on(event) and event.sequence > since for event in events):
                self.raised = None
        return self.dropped - before if beats else None

    def _count_beat(self, beat: Heartbeat) -> None:
        self.dropped = max(self.dropped, beat.recorder_dropped)
        _count_up(self.dropped_by, beat.recorder_dropped_by)
        _count_up(self.unrecorded, beat.recorder_unrecorded)
        self.probes_off = beat.recorder_probes_off or self.probes_off
        self.held_bytes = self.held_bytes if beat.held_bytes is None else beat.held_bytes
        self.is_scheduler = self.is_scheduler or beat.scheduler_step is not None
        if beat.recorder_closed:
            self.contact, self.ended_by = Contact.CLOSED, beat.recorder_ended_by
        else:
            self.gives_signs = True

    def count_unknown(self, name: str) -> None:
        """Count a name that this version of kvtrail does not know."""
        if name in self.unknown or len(self.unknown) < MAX_UNRECORDED:
            self.unknown[name] = self.unknown.get(name, 0) + 1

    @property
    def missing(self) -> int:
        """Events between the first and the highest sequence number that have not arrived (yet)."""
        return max(0, self.highest - self.first + 1 - self.received)

    def as_dict(self) -> dict[str, Any]:
        """The state as JSON-ready data."""
        names = (
            "id", "engine", "received", "dropped", "dropped_by", "missing", "last_ns", "heard_ns", "lag_ns",
            "unrecorded", "unknown", "probes_off", "gives_signs", "ended_by", "memory_limit", "held_bytes",
        )  # fmt: skip
        own = {name: getattr(self, name) for name in names}
        return {**own, "status": self.contact, **self.description, "connectors": sorted(self.connectors)}

    @property
    def replaceable_as(self) -> tuple[str, str]:
        """Service and model: an engine with the same values may replace this one's."""
        return self.description["service"], self.description["model"]

    @property
    def info(self) -> tuple[str, ...]:
        """Its engine's description: the values of the labels `INFO`."""
        about = self.description
        return (
            shown_name(self.engine, about), about["model"], about["service"], about["instance"], about["pod"], about["host"],
            about["version"], about["kvtrail"],
        )  # fmt: skip


def _count_up(counts: dict[str, int], named: Sequence[str] | None) -> None:
    """Take over the counts of a heartbeat, such as `kv.lookup:3`; they never decrease."""
    for name, _, times in (text.rpartition(":") for text in (named or ())[:MAX_UNRECORDED]):
        if times.isdecimal() and (name in counts or len(counts) < MAX_UNRECORDED):
            counts[name] = max(counts.get(name, 0), int(times))


class Recorders:
    """The recorders that reported and are not forgotten, by id."""

    def __init__(self) -> None:
        self._held: dict[str, RecorderState] = {}
        self._replaced_by: dict[str, str] = {}
        """For each engine, the engine that replaced it; each replaces one."""

    def get(self, recorder: str) -> RecorderState | None:
        return self._held.get(recorder)

    def add(self, recorder: RecorderState) -> None:
        self._held[recorder.id] = recorder

    def values(self) -> list[RecorderState]:
        """A snapshot of all recorders, since another thread may call this."""
        return list(self._held.values())

    def is_replaced(self, engine: str) -> bool:
        """Whether another engine replaced this one."""
        return engine in self._replaced_by

    def update(self, *, at_ns: int) -> list[RecorderState]:
        """Update which recorders report, at `at_ns` of the monotonic clock; returns forgotten recorders."""
        engines = by_key(self._held.values(), lambda each: each.engine)
        silent = []
        for engine, recorders in engines.items():
            for recorder in recorders:
                if recorder.contact in (Contact.CLOSED, Contact.TERMINATED) or at_ns - recorder.heard_at <= CONTACT_NS:
                    continue
                recorder.contact = Contact.LOST if recorder.gives_signs else Contact.QUIET
                ended = any(other.contact is Contact.CLOSED for other in recorders)
                began_again = any(other.began_at > recorder.heard_at for other in recorders)
                terminated = recorder.gives_signs and at_ns - recorder.heard_at > TERMINATED_NS
                if ended or began_again or terminated:
                    recorder.contact = Contact.TERMINATED
            if all(
                recorder.contact not in (Contact.RUNNING, Contact.TERMINATED, Contact.CLOSED) for recorder in recorders
            ):
                silent.append(engine)
        self._explain(silent, engines)
        gone = [
            recorder for recorders in engines.values() for recorder in recorders if _is_over(recorder, recorders, at_ns)
        ]
        longest_lost = sorted(self._held.values(), key=lambda recorder: recorder.heard_at)
        gone += longest_lost[: max(0, len(self._held) - MAX_RECORDERS)]
        for recorder in gone:
            self._held.pop(recorder.id, None)
        for engine in engines.keys() - {recorder.engine for recorder in self._held.values()}:
            self._replaced_by.pop(engine, None)
        return gone

    def _explain(self, silent: Collection[str], engines: Mapping[str, Sequence[RecorderState]]) -> None:
        """Find a replacement for each engine without a reporting recorder, the longest silent first."""
        taken = set(self._replaced_by.values())
        fresh: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for engine, held in engines.items():
            # Its first events arrived, so it is a new engine, not an old one that is new to this sidecar.
            if (
                engine not in taken
                and any(recorder.contact is Contact.RUNNING for recorder in held)
                and any(recorder.first == 0 for recorder in held)
            ):
                began_at = min(recorder.began_at for recorder in held)
                fresh.setdefault(held[0].replaceable_as, []).append((began_at, engine))
        for alike in fresh.values():
            alike.sort()
        for engine in sorted(silent, key=lambda name: max(recorder.heard_at for recorder in engines[name])):
            held = engines[engine]
            since = max(min(r.began_at for r in held), max(r.heard_at for r in held) - OVERLAP_NS)
            alike = fresh.get(held[0].replaceable_as, [])
            later = bisect_right(alike, since, key=lambda each: each[0])
            if later < len(alike):
                _, self._replaced_by[engine] = alike.pop(later)
                for recorder in held:
                    recorder.contact = Contact.TERMINATED


def _is_over(recorder: RecorderState, of_engine: Iterable[RecorderState], at_ns: int) -> bool:
    """Whether a recorder can be forgotten. An end record is remembered while another recorder of the engine is silent."""
    if recorder.contact is Contact.CLOSED and all(other.contact is not Contact.LOST for other in of_engine):
        return at_ns - recorder.heard_at > FORGET_CLOSED_NS
    return at_ns - recorder.heard_at > FORGET_SILENT_NS
