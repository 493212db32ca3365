"""Engines and their recorders: which of them are live, how far behind they are, and what they lost."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.words import NOTHING, count, duration, some

LIVE_NS = 30 * 10**9
"""What was heard of later than this is taken to go on, where no recorder says."""


_UNSEEN = {True: "live", False: "not seen since the tracer started"}
"""The state of an engine without recorders."""


def is_live(recorder: Row) -> bool:
    """Whether the recorder's process is expected to send more."""
    return bool(recorder["status"] == "running")


def is_up(engine: Row) -> bool:
    """Whether the engine is expected to send more: as its recorders say, or another process that hears them."""
    return any(map(is_live, engine["recorders"])) if engine["recorders"] else bool(engine["is_heard"])


def recorder_state(recorder: Row, *, now_ns: int) -> str:
    """Live, closed, terminated, quiet, or for how long it has been silent."""
    if recorder["status"] in ("closed", "terminated", "quiet"):
        return str(recorder["status"])
    silent_s = max(0, now_ns - recorder["heard_ns"]) // 10**9
    # Heartbeats come every 5 s: shorter silence means nothing, and the number would only flicker.
    if silent_s <= 6 or not recorder["gives_signs"]:
        return "live"
    return f"silent for {silent_s} s" if silent_s < 60 else f"silent for {silent_s // 60:,} min"


def missing_spans(recorders: Iterable[Row]) -> str:
    """A sentence if spans are missing, else an empty text."""
    listed = list(recorders)
    dropped, missing = (sum(recorder[name] for recorder in listed) for name in ("dropped", "missing"))
    parts = [f"{count(dropped)} dropped by the recorders themselves"] if dropped else []
    parts += [f"{count(missing)} that have not arrived"] if missing else []
    if not parts:
        return ""
    return (
        f"Spans are missing: {' and '.join(parts)}. kvtrail cannot judge what it did not see, so the verdict of the"
        " requests concerned is unknown."
    )


def quiet_engines(recorders: Iterable[Row]) -> str:
    """A sentence if engines give no signs of life and are missed, else an empty text."""
    engines = {recorder["engine"] for recorder in recorders if recorder["status"] == "quiet"}
    if not engines:
        return ""
    return (
        f"Nothing has come from {some(len(engines), 'engine')} for a while, and no signs of life ever do: idle or dead,"
        " nobody can tell, and a request that waits too long there is not found. If what receives the spans passes them on"
        " to kvtrail, such as a Collector, set KVTRAIL_HEARTBEATS=spans where the engine runs."
    )


def counts(fleet: Row, *, now_ns: int) -> list[tuple[str, str, str]]:
    """The cards at the top of the page: name, value, note."""
    engines = fleet["engines"]
    recorders = [recorder for engine in engines for recorder in engine["recorders"]]
    live = [recorder for recorder in recorders if is_live(recorder)]
    lag_ns = max((recorder["lag_ns"] for recorder in live), default=None)
    dropped, missing = (sum(recorder[name] for recorder in recorders) for name in ("dropped", "missing"))
    return [
        ("Engines live", count(sum(map(is_up, engines))), f"of {some(len(engines), 'engine')} ever seen"),
        ("Recorders live", count(len(live)), f"of {some(len(recorders), 'recorder')} seen"),
        ("Open requests", count(fleet["tracer"]["open"]), "begun and not ended"),
        ("Longest lag", NOTHING if lag_ns is None else duration(lag_ns), "of the latest events"),
        ("Dropped", count(dropped), "by the recorders"),
        ("Gaps", count(missing), "events not yet arrived"),
    ]


def engine_rows(engines: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The engines: live ones first, then by when they were last seen; those this tracer never saw come last."""

    def newest(engine: Row) -> Row | None:
        """An engine is as live as its liveliest recorder."""
        recorders = engine["recorders"]
        return max(recorders, key=lambda r: (is_live(r), r["last_ns"])) if recorders else None

    def order(pair: tuple[Row, Row | None]) -> tuple[bool, int, str]:
        engine, _ = pair
        return not is_up(engine), -max((r["last_ns"] for r in engine["recorders"]), default=0), engine["engine"]

    ordered = sorted(((engine, newest(engine)) for engine in engines), key=order)
    return [
        {
            "Engine": engine["name"],
            "State": recorder_state(recorder, now_ns=now_ns) if recorder else _UNSEEN[is_up(engine)],
            "Model": engine["model"] or None,
            "vLLM": engine["version"] or None,
            "kvtrail": engine["kvtrail"] or None,
            "Connectors": ", ".join(sorted({c for r in engine["recorders"] for c in r["connectors"]})) or None,
            "Host": engine["host"] or None,
            "Open requests": engine["open"],
            "Recorders": len(engine["recorders"]),
            "Last seen": text.clock(max((r["last_ns"] for r in engine["recorders"]), default=0), now_ns=now_ns),
            "Id": engine["engine"],
        }
        for engine, recorder in ordered
    ]


def recorder_rows(recorders: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The recorders: those that lost something first, then the live ones, then by when they were last seen."""

    def order(each: Row) -> tuple[bool, bool, int, str]:
        loses = each["dropped"] or each["missing"] or each["untold"] or each["unknown"] or each["probes_off"]
        return not loses, not is_live(each), -each["last_ns"], each["id"]

    return [
        {
            "Recorder": recorder["id"],
            "Engine": recorder["engine_name"],
            "Model": recorder["model"] or None,
            "kvtrail": recorder["kvtrail"] or None,
            "State": recorder_state(recorder, now_ns=now_ns),
            "Lag": duration(recorder["lag_ns"]),
            "Received": recorder["received"],
            "Dropped": recorder["dropped"],
            "Gaps": recorder["missing"],
            "Not told": ", ".join(f"{kind} {count(n)}" for kind, n in recorder["untold"].items()) or None,
            "Not known here": ", ".join(f"{name} {count(n)}" for name, n in recorder["unknown"].items()) or None,
            "Probes off": ", ".join(recorder["probes_off"]) or None,
            "Last seen": text.clock(recorder["last_ns"], now_ns=now_ns),
            "Service": recorder["service"],
        }
        for recorder in sorted(recorders, key=order)
    ]


def tracer_status(tracer: Row, *, url: str, now_ns: int) -> str:
    """The tracer itself, in a sentence."""
    last = tracer["last_received_ns"]
    received = f"last spans at {text.clock(last, now_ns=now_ns)} UTC" if last else "no spans since then"
    return (
        f"Tracer {tracer['version']} at `{url}`, up since {text.clock(tracer['started_ns'], now_ns=now_ns)} UTC, {received};"
        f" {some(tracer['spans_stored'], 'span')} stored since it started,"
        f" {some(tracer['events_missing'], 'event')} given up as missing."
    )
