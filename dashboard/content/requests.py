"""The list of requests, and how many there are in each status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.badges import ABANDONED
from kvtrail.dashboard.content.fleet import LIVE_NS, is_live


def request_rows(requests: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The table's rows; times and numbers stay sortable."""
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
            "Duration": duration_ns(request, now_ns=now_ns) / 1e9,
            "Connector": request["connector"],
            "Engine": request["engine_name"],
        }
        for request in requests
    ]


def duration_ns(request: Row, *, now_ns: int) -> int:
    """How long a request took, or has taken so far; a failed or silent one ends with its latest event."""
    end_ns = request["ended_ns"]
    if end_ns is None:
        is_over = request["status"] == "failed" or now_ns - request["last_ns"] > LIVE_NS
        end_ns = request["last_ns"] if is_over else now_ns
    return max(0, int(end_ns) - int(request["started_ns"]))


def status_counts(requests: Iterable[Row], recorders: Iterable[Row], *, now_ns: int) -> Counter[str]:
    """Requests by status; those that never ended and whose engine is gone count as abandoned."""
    live = {recorder["engine"] for recorder in recorders if is_live(recorder)}

    def status(request: Row) -> str:
        is_over = request["ended_ns"] is not None or request["status"] == "failed"
        # A tracer that has just started knows no recorders yet: then the request's own latest event counts.
        is_alive = request["engine"] in live or now_ns - request["last_ns"] <= LIVE_NS
        return str(request["status"]) if is_over or is_alive else ABANDONED

    return Counter(map(status, requests))
