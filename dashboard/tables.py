"""Tables from the api's data: plain rows, one dict a row, with the column headings that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.series import witness_labels

LIVE_NS = 30 * 10**9
"""A recorder gives a sign of life every 5 s; one that has been silent for longer than this is taken for gone."""


def request_rows(requests: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The list of requests; times and numbers stay sortable."""
    return [
        {
            "Request": request["request"],
            "Status": request["status"],
            "Verdict": request["verdict"],
            "Findings": request["findings"],
            "Preemptions": request["epoch"],
            "Total": request["total"],
            "Computed": request["computed"],
            "Matched": request["matched"],
            "Loaded": request["loaded"],
            "Stored": request["stored"],
            "Lookups": request["lookups"],
            "Started": datetime.fromtimestamp(request["started_ns"] / 1e9, UTC),
            "Duration": (lasted_ns(request, now_ns=now_ns)) / 1e9,
            "Connector": request["connector"],
        }
        for request in requests
    ]


def lasted_ns(request: Row, *, now_ns: int) -> int:
    """How long a request took, or has taken so far; one that failed ends with the last thing heard of it."""
    if request["ended_ns"] is not None:
        end = request["ended_ns"]
    elif request["status"] == "failed" or now_ns - request["last_ns"] > LIVE_NS:
        end = request["last_ns"]
    else:
        end = now_ns
    return max(0, int(end) - int(request["started_ns"]))


def step_rows(timeline: Row) -> list[Row]:
    """Every step with what it says and the account after it."""
    origin = timeline["request"]["started_ns"]
    marks = witness_labels(timeline["findings"])
    return [
        {
            "Step": number,
            "Witness": marks.get(step["span_id"], ""),
            "Time (UTC)": wording.clock(step["start_ns"]),
            "Since arrival": (step["start_ns"] - origin) / 1e6,
            "Epoch": step["epoch"],
            "Kind": wording.kind(step["name"]),
            "Says": _says(step),
            "Took": wording.duration(step["end_ns"] - step["start_ns"]),
            **{name.capitalize(): _after(step, name) for name in ("status", "computed", "matched", "loaded", "stored")},
            "By": step["service"] if step["foreign"] else f"{step['role']} {step['rank'] or 0}",
        }
        for number, step in enumerate(timeline["steps"], 1)
    ]


def recorder_rows(recorders: Iterable[Row], *, now_ns: int) -> list[dict[str, str]]:
    """The recorders, those that are alive first, then the latest heard."""
    ordered = sorted(recorders, key=lambda r: (not is_live(r, now_ns=now_ns), -r["last_ns"], r["id"]))
    return [
        {
            "Engine": wording.plain(recorder["engine"][:8]),
            "Recorder": wording.plain(recorder["id"][:8]),
            "Service": wording.plain(recorder["service"]),
            "Model": wording.plain(recorder["model"]) or wording.NOTHING,
            "State": state(recorder, now_ns=now_ns),
            "Last heard (UTC)": wording.clock(recorder["last_ns"], now_ns=now_ns),
            "Events received": wording.count(recorder["received"]),
            "Dropped": wording.count(recorder["dropped"]),
            "Missing": wording.count(recorder["missing"]),
        }
        for recorder in ordered
    ]


def is_live(recorder: Row, *, now_ns: int) -> bool:
    """Whether the recorder's process can be expected to say more."""
    return not recorder["closed"] and now_ns - recorder["last_ns"] <= LIVE_NS


def losses(recorders: Iterable[Row]) -> str:
    """One sentence when spans are missing, or nothing."""
    listed = list(recorders)
    dropped = sum(recorder["dropped"] for recorder in listed)
    missing = sum(recorder["missing"] for recorder in listed)
    if not dropped and not missing:
        return ""
    parts = []
    if dropped:
        parts.append(f"{wording.count(dropped)} dropped by the recorders themselves")
    if missing:
        parts.append(f"{wording.count(missing)} that have not arrived")
    return (
        f"Spans are missing: {' and '.join(parts)}. What was not seen cannot be judged, so the verdict of the requests"
        " concerned is unknown."
    )


def gaps(timeline: Row) -> str:
    """One sentence when events of this request are missing, or nothing."""
    if timeline["missing"] > 0:
        verb = "event of this request is" if timeline["missing"] == 1 else "events of this request are"
        return f"{wording.count(timeline['missing'])} {verb} missing. What was not seen cannot be judged."
    if not timeline["request"]["complete"]:
        return "Events of this request are missing. What was not seen cannot be judged."
    return ""


def status_counts(requests: Iterable[Row], recorders: Iterable[Row], *, now_ns: int) -> Counter[str]:
    """Requests by status. Those that never ended, and never will as their engine is gone, are 'abandoned'."""
    alive = {recorder["engine"] for recorder in recorders if is_live(recorder, now_ns=now_ns)}
    return Counter(
        request["status"]
        if request["ended_ns"] is not None or request["status"] == "failed"
        # A tracer that has just started knows no recorders yet: then the request's own latest event counts.
        or request["engine"] in alive or now_ns - request["last_ns"] <= LIVE_NS
        else wording.LEFT_OPEN
        for request in requests
    )  # fmt: skip


def state(recorder: Row, *, now_ns: int) -> str:
    """Whether a recorder is live, closed, or silent for how long."""
    if recorder["closed"]:
        return "closed"
    silent_s = max(0, now_ns - recorder["last_ns"]) // 10**9
    # Signs of life come every 5 s: up to that, silence means nothing, and a number would only flicker.
    if silent_s <= 6:
        return "live"
    return f"silent for {silent_s} s" if silent_s < 60 else f"silent for {silent_s // 60:,} min"


def _says(step: Row) -> str:
    said = wording.said(step["name"], step["numbers"])
    return f"{said}; raised {step['error']}" if step["error"] else said


def _after(step: Row, name: str) -> Any:
    return None if step["account"] is None else step["account"][name]
