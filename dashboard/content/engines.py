"""Engines, hand-offs between them, and recorders that lost events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.model.words import NOTHING, count, duration, ended, some


def missing_spans(recorders: Iterable[Row]) -> str:
    """A sentence if spans are missing, else an empty text."""
    losses = [(recorder["dropped"], recorder["missing"]) for recorder in recorders]
    dropped, missing = sum(dropped for dropped, _ in losses), sum(missing for _, missing in losses)
    if not (dropped or missing):
        return ""
    return (
        f"Spans are missing: {count(dropped)} dropped by the recorders themselves and {count(missing)} that have not arrived."
        " kvtrail cannot judge what it did not see, so the verdict of the requests concerned is unknown."
    )


def quiet_engines(recorders: Iterable[Row]) -> str:
    """A sentence if engines without heartbeats have sent nothing for a while, else an empty text."""
    engines = {recorder["engine"] for recorder in recorders if recorder["status"] == "quiet"}
    if not engines:
        return ""
    return (
        f"Nothing has come from {some(len(engines), 'engine')} for a while, and no heartbeats ever do: idle or dead,"
        " nobody can tell, and a request that waits too long there is not found. If what receives the spans passes them on"
        " to kvtrail, such as a Collector, set KVTRAIL_HEARTBEATS=spans where the engine runs."
    )


def since(engines: Iterable[Row], shown: TimeRange) -> list[Row]:
    """The engines, except those that had ended before the range."""
    return [each for each in engines if each["ended_ns"] is None or each["ended_ns"] >= shown.since_ns]


def counts(engines: Sequence[Row], shown: TimeRange) -> str:
    """The number of engines in each state, in a line. An ended engine counts in the range in which it ended, as in the
    sentences."""
    here = since(engines, shown)
    states = Counter(each["state"] for each in here if each["ended_ns"] is None or each["ended_ns"] <= shown.until_ns)
    parts = [f"{count(states[state])} {palette.label(state)}" for state in _ORDER if states[state]]
    earlier = len(engines) - len(here)
    parts += [f"not listed: {some(earlier, 'engine')} that ended before this range"] if earlier else []
    return f"{'; '.join(parts) or 'None in this range'}."


_ORDER = ("died", "lost_contact", "running", "drained", "replaced", "unseen")
"""Engines that need attention first, then those that serve."""


def in_order(engines: Iterable[Row]) -> list[Row]:
    """The engines, by state, then by when they ended, service and name."""
    return sorted(
        engines,
        key=lambda engine: (
            _ORDER.index(engine["state"]) if engine["state"] in _ORDER else len(_ORDER),
            -(engine["ended_ns"] or 0),
            engine["service"] or "",
            engine["name"],
        ),
    )


def engine_rows(engines: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The engines by display name, in the order given."""
    return [
        {
            "Service": engine["service"] or None,
            "Engine": engine["name"],
            "State": [engine["state"]],
            "Ended of": _end(engine, now_ns=now_ns),
            "Open": engine["open"],
            "Open at its end": engine["lost"] or None,
            "Model": engine["model"] or None,
            "vLLM": engine["version"] or None,
            "Connectors": sorted({name for recorder in engine["recorders"] for name in recorder["connectors"]}),
            "Host": engine["host"] or None,
            "Last seen": text.moment(
                max((r["last_ns"] for r in engine["recorders"]), default=0) or engine["ended_ns"] or 0
            ),
        }
        for engine in engines
    ]


def _end(engine: Row, *, now_ns: int) -> str | None:
    """When and why an engine ended, if known."""
    if engine["state"] not in ("died", "drained", "lost_contact"):
        return None
    at = text.clock(engine["ended_ns"], now_ns=now_ns).partition(".")[0] if engine["ended_ns"] else ""
    why = engine["ended_by"]
    if why == NO_END_RECORD:
        why = ended(why) if engine["state"] == "died" else "stopped with no open request"
    return ": ".join(filter(None, (at, why))) or None


def recorder_rows(recorders: Iterable[Row]) -> list[Row]:
    """The recorders with losses, by their last event."""
    return [
        {
            "Recorder": recorder["id"],
            "Engine": recorder["engine_name"],
            "Dropped": recorder["dropped"],
            "Why dropped": ", ".join(f"{why} {count(n)}" for why, n in recorder.get("dropped_by", {}).items()) or None,
            "Gaps": recorder["missing"],
            "Not recorded": ", ".join(f"{kind} {count(n)}" for kind, n in recorder["unrecorded"].items()) or None,
            "Not known here": ", ".join(f"{name} {count(n)}" for name, n in recorder["unknown"].items()) or None,
            "Probes off": ", ".join(recorder["probes_off"]) or None,
            "Lag": duration(recorder["lag_ns"]),
            "Last seen": text.moment(recorder["last_ns"]),
        }
        for recorder in sorted(recorders, key=lambda each: (-each["last_ns"], each["id"]))
        if any(recorder[name] for name in ("dropped", "missing", "unrecorded", "unknown", "probes_off"))
    ]


KEPT_FOR = {
    "unclaimed": "nobody has claimed it",
    "waiting": "a request that is to load it",
    "loaded": "loaded; to be given back",
    "abandoned": "nobody: its request has ended",
}
"""Display texts of the reason why blocks are kept, by the API's value."""


def pair_rows(pairs: Iterable[Row]) -> list[Row]:
    """The pairs of engines that hand over, in the given order."""
    return [
        {
            "Prefills": pair["giver_name"] or NOTHING,
            "Decodes": pair["taker_name"] or "nobody",
            "Hand-offs": pair["handoffs"],
            "Tokens": pair["tokens"],
            "Loaded": pair["outcomes"].get("loaded", 0),
            "Failed": pair["outcomes"].get("failed", 0) or None,
            "Not loaded": pair["outcomes"].get("not_loaded", 0) or None,
            "Declined": pair["outcomes"].get("declined", 0) or None,
            "Leases expired": pair["outcomes"].get("expired", 0) or None,
            "Mean wait": None if pair["mean_wait_ns"] is None else duration(pair["mean_wait_ns"]),
        }
        for pair in pairs
    ]


def kept_rows(kept: Iterable[Row]) -> list[Row]:
    """The hand-offs that each engine keeps, and for which engine, in the given order."""
    return [
        {
            "Engine": each["engine_name"],
            "Keeps for": each["taker_name"] or NOTHING,
            "Which is": KEPT_FOR.get(each["state"], each["state"]),
            "Hand-offs": each["handoffs"],
            "Tokens": each["tokens"],
            "Blocks": each["blocks"],
            "Of its pool": each["blocks"] / each["pool_blocks"] if each["pool_blocks"] else None,
            "Oldest": duration(each["oldest_ns"]),
        }
        for each in kept
    ]


def tracer_status(tracer: Row, *, url: str, now_ns: int) -> str:
    """The tracer itself, in a sentence."""
    last = tracer["last_received_ns"]
    received = f"last spans at {text.clock(last, now_ns=now_ns)} UTC" if last else "no spans since then"
    missing = f", {some(tracer['events_missing'], 'event')} given up as missing" if tracer["events_missing"] else ""
    return (
        f"Tracer {tracer['version']} at `{url}`, up since {text.clock(tracer['started_ns'], now_ns=now_ns)} UTC, {received};"
        f" {some(tracer['spans_stored'], 'span')} stored since it started{missing}."
    )
