"""The fleet in rows and words: engines, and the recorders that tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtrail.dashboard import tables, wording
from kvtrail.dashboard.client import Row


def counts(fleet: Row, *, now_ns: int) -> list[tuple[str, str, str]]:
    """The numbers of the page's head: name, value, note."""
    engines = fleet["engines"]
    recorders = [recorder for engine in engines for recorder in engine["recorders"]]
    live = [r for r in recorders if tables.is_live(r, now_ns=now_ns)]
    heard = {r["engine"] for r in live}
    dropped, missing = (sum(r[name] for r in recorders) for name in ("dropped", "missing"))
    lag_ns = max((r["lag_ns"] for r in live), default=None)
    return [
        ("Engines live", wording.count(len(heard)), f"of {wording.some(len(engines), 'engine')} ever heard"),
        ("Recorders live", wording.count(len(live)), f"of {wording.some(len(recorders), 'recorder')} heard"),
        ("Open requests", wording.count(fleet["tracer"]["open"]), "begun and not ended"),
        ("Longest lag", wording.NOTHING if lag_ns is None else wording.duration(lag_ns), "of what came last"),
        ("Dropped", wording.count(dropped), "by the recorders"),
        ("Gaps", wording.count(missing), "events not yet come"),
    ]


def engine_rows(engines: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The engines, those that are live first, then the latest heard; engines that were never heard by this tracer last."""

    def last_ns(engine: Row) -> int:
        return max((r["last_ns"] for r in engine["recorders"]), default=0)

    def live(engine: Row) -> bool:
        return any(tables.is_live(r, now_ns=now_ns) for r in engine["recorders"])

    ordered = sorted(engines, key=lambda e: (not live(e), -last_ns(e), e["engine"]))
    hosts = any(engine["host"] for engine in ordered)  # recorders name it where OpenTelemetry's resource does
    return [
        {
            "Engine": engine["engine"],
            "State": _state(engine, now_ns=now_ns),
            "Model": engine["model"] or None,
            "vLLM": engine["version"] or None,
            "Connectors": ", ".join(sorted({c for r in engine["recorders"] for c in r["connectors"]})) or None,
            **({"Host": engine["host"] or None} if hosts else {}),
            "Open requests": engine["open"],
            "Recorders": len(engine["recorders"]),
            "Last heard": wording.clock(last_ns(engine), now_ns=now_ns),
        }
        for engine in ordered
    ]


def recorder_rows(engines: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The recorders, those that lose something first, then the live ones."""
    recorders = [r for engine in engines for r in engine["recorders"]]
    ordered = sorted(
        recorders,
        key=lambda r: (
            not (r["dropped"] or r["missing"]),
            not tables.is_live(r, now_ns=now_ns),
            -r["last_ns"],
            r["id"],
        ),
    )
    return [
        {
            "Recorder": recorder["id"],
            "Engine": recorder["engine"][:8],
            "State": tables.state(recorder, now_ns=now_ns),
            "Lag": wording.duration(recorder["lag_ns"]),
            "Received": recorder["received"],
            "Dropped": recorder["dropped"],
            "Gaps": recorder["missing"],
            "Last heard": wording.clock(recorder["last_ns"], now_ns=now_ns),
            "Service": recorder["service"],
        }
        for recorder in ordered
    ]


def sidecar(tracer: Row, *, url: str, now_ns: int) -> str:
    """The tracer itself, in a line."""
    last: Any = tracer["last_received_ns"]
    heard = f"last spans at {wording.clock(last, now_ns=now_ns)} UTC" if last else "no spans since then"
    return (
        f"Tracer {tracer['version']} at `{url}`, up since {wording.clock(tracer['started_ns'], now_ns=now_ns)} UTC, {heard};"
        f" {wording.some(tracer['spans_stored'], 'span')} stored since it started,"
        f" {wording.some(tracer['events_missing'], 'event')} given up as missing."
    )


def _state(engine: Row, *, now_ns: int) -> str:
    if not engine["recorders"]:
        return "not heard since the tracer started"
    # An engine is as alive as its liveliest recorder.
    return min(
        (not tables.is_live(r, now_ns=now_ns), -r["last_ns"], tables.state(r, now_ns=now_ns))
        for r in engine["recorders"]
    )[2]
