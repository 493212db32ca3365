"""Markers of notable events of engines, from launches and events, and the selection of markers that may explain a change."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvtrail.tracer.events.events import CacheReset, Event, Heartbeat, Reset
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.liveness.engine import EngineState, Launch
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.model.markers import MOST_TEXT, Marker, MarkerKind
from kvtrail.tracer.model.words import duration, ended, size, some, with_open

MOST_DIFFERENCES = 4
"""Maximum number of changed versions and settings that are named; the rest are counted."""
PLACE_NS = 10 * 60 * 10**9
"""An engine that is launched within this time after another one ended replaces it."""
MOST_EARLIER = 200
"""Maximum number of earlier launches of a service and model with which a new launch may be compared."""
BEFORE_NS, AFTER_NS = 3 * 60 * 10**9, 60 * 10**9
"""Maximum distance of a marker from a change: sums begin with a minute."""
BEST_FIRST = (
    MarkerKind.DEATH, MarkerKind.CONTACT_LOST, MarkerKind.DEPLOY, MarkerKind.RESET, MarkerKind.RESTART, MarkerKind.END,
)  # fmt: skip
"""The kinds that may explain a change, the most plausible first."""
_LAUNCHES = (MarkerKind.DEPLOY, MarkerKind.RESTART)
_ENDS = {
    EngineState.DIED: MarkerKind.DEATH,
    EngineState.LOST_CONTACT: MarkerKind.CONTACT_LOST,
    EngineState.DRAINED: MarkerKind.END,
    EngineState.REPLACED: MarkerKind.END,
}


def of_events(events: Iterable[Event]) -> list[Marker]:
    """The markers in a batch of events: resets, and reports of dropped events."""
    found: dict[str, Marker] = {}
    for event in events:
        if isinstance(event, Reset):
            refused = ", which it refused" if event.succeeded is False else ""
            what = MarkerKind.RESET, f"was asked to reset {event.connector or 'its connector'}'s store{refused}"
        elif isinstance(event, CacheReset):
            what = MarkerKind.RESET, "reset vLLM's own prefix cache"
        elif isinstance(event, Heartbeat) and event.recorder_dropped:
            what = MarkerKind.DROP, f"had dropped {some(event.recorder_dropped, 'event')} since its recorder's start"
        else:
            continue
        # A recorder repeats its number of dropped events: only the first report of a number is a marker.
        number = event.recorder_dropped if isinstance(event, Heartbeat) else event.sequence
        id_ = f"{what[0]} {event.recorder} {number}"
        found.setdefault(id_, Marker(id=id_, kind=what[0], at_ns=event.end_ns, engine=event.engine, text=what[1]))
    return list(found.values())


def of_launches(
    launches: Iterable[Launch], engines: Mapping[str, Mapping[str, Any]], *, since_ns: int, until_ns: int
) -> list[Marker]:
    """The markers of the launches that began or ended in a time range, in Unix nanoseconds, including its end.

    Args:
        launches: all known launches, since each is compared with earlier ones.
        engines: each engine's `service` and `model`; an engine is compared with others that have the same.
    """
    kin: dict[tuple[str, str], deque[Launch]] = defaultdict(lambda: deque(maxlen=MOST_EARLIER))
    own: dict[str, Launch] = {}
    replaced: set[tuple[str, str]] = set()
    found: list[Marker] = []
    for launch in sorted(launches, key=lambda each: each.began_ns):
        about = engines.get(launch.engine, {})
        earlier = kin[str(about.get("service", "")), str(about.get("model", ""))]
        if launch.began_ns:
            marker = _beginning(launch, own.get(launch.engine), earlier, engines, replaced)
            if since_ns <= launch.began_ns <= until_ns:
                found.append(marker)
        if launch.ended_ns is not None and since_ns <= launch.ended_ns <= until_ns and launch.state in _ENDS:
            found.append(_ending(launch, launch.ended_ns))
        earlier.append(launch)
        own[launch.engine] = launch
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Descriptions of changed versions and settings that both launches have."""
    return [
        f"{name} {_shown(name, before[name])} → {_shown(name, value)}"
        for name, value in after.items()
        if name in before and before[name] != value
    ]


def _shown(name: str, value: str) -> str:
    """A setting's value as text: bytes with a unit."""
    return size(int(value)) if "bytes" in name and value.isdecimal() else value


def _beginning(
    launch: Launch,
    own: Launch | None,
    earlier: Iterable[Launch],
    engines: Mapping[str, Mapping[str, Any]],
    replaced: set[tuple[str, str]],
) -> Marker:
    """The marker of a launch, compared with its predecessor: the engine's `own`, or else one of the `earlier` launches of its
    service and model, preferably one that has ended and is not `replaced` by another."""
    candidates = [own] if own is not None else [*earlier]
    ended = [
        each
        for each in candidates
        if each.ended_ns is not None
        and 0 <= launch.began_ns - each.ended_ns <= PLACE_NS
        and (each.engine, each.launch) not in replaced
    ]
    before = max(ended or candidates, key=lambda each: each.ended_ns or each.began_ns, default=None)
    kind, text = MarkerKind.DEPLOY, "was started, the first of its service and model"
    if before is not None:
        if before in ended:
            replaced.add((before.engine, before.launch))
        took = 0 if before.ended_ns is None else launch.began_ns - before.ended_ns
        differing = differences(before.settings, launch.settings)
        if differing:
            named, more = differing[:MOST_DIFFERENCES], len(differing) - MOST_DIFFERENCES
            text = f"was started with {', '.join(named)}{f', and {more} more' if more > 0 else ''}"
        elif own is not None or before in ended:
            kind, name = MarkerKind.RESTART, str(engines.get(before.engine, {}).get("name", before.engine))
            after = f", {duration(took)} after it ended" if took > 0 else ""
            text = f"was started again{after}" if own is not None else f"was started in the place of {name}{after}"
        else:
            text = "was started beside others of its service and model, with equal settings"
    id_ = f"launch {launch.engine} {launch.launch} {launch.began_ns}"
    return Marker(id=id_, kind=kind, at_ns=launch.began_ns, engine=launch.engine, text=text[:MOST_TEXT])


def _ending(launch: Launch, at_ns: int) -> Marker:
    how = {
        EngineState.DIED: ended(launch.ended_by or NO_END_RECORD, whole=True),
        EngineState.LOST_CONTACT: "stopped reporting",
        EngineState.REPLACED: "stopped reporting and was replaced",
        EngineState.DRAINED: "ended",
    }[launch.state]
    lost = f" {with_open(launch.lost)}" if launch.lost else ""
    id_ = f"end {launch.engine} {launch.launch} {at_ns}"
    text = f"{how[: MOST_TEXT - len(lost)]}{lost}"
    return Marker(id=id_, kind=_ENDS[launch.state], at_ns=at_ns, engine=launch.engine, text=text)


def joined(markers: Iterable[Marker], names: Mapping[str, str], *, step_ns: int) -> Iterator[Marker]:
    """Markers by time, with markers of one kind in the same step of `step_ns` merged: the first represents all, and has no
    engine if they belong to several. `names` are those of engines."""
    by_time = sorted(markers, key=lambda marker: (marker.at_ns, marker.id))
    for group in by_key(by_time, lambda each: (each.kind, each.at_ns // step_ns)).values():
        first, others = group[0], len({each.engine for each in group}) - 1
        if others:
            said = f"{names.get(first.engine, first.engine)} {first.text}, and {some(others, 'other engine')}"
            first = replace(first, engine="", text=f"{said} likewise")
        yield replace(first, count=sum(each.count for each in group))


def near(markers: Iterable[Marker], *, since_ns: int, at_ns: int, after_ns: int = AFTER_NS) -> list[Marker]:
    """The markers near a change that began between these moments, which may be equal. An end is omitted if the launch that
    replaced the engine is included."""
    begin_ns, end_ns = since_ns - BEFORE_NS, at_ns + after_ns
    found = [each for each in markers if each.kind in BEST_FIRST and begin_ns <= each.at_ns <= end_ns]
    launched = {each.engine for each in found if each.kind in _LAUNCHES}
    found = [each for each in found if each.kind is not MarkerKind.END or each.engine not in launched]
    return sorted(found, key=lambda each: (BEST_FIRST.index(each.kind), each.at_ns))
