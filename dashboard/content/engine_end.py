"""How the engine of a request ended that was open then: who, when and of what, and the page that shows it."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import markers, text
from kvtrail.dashboard.content.link import Link
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.content.unknown import NEVER_ENDED
from kvtrail.tracer.model.markers import MarkerKind

ENDS = (MarkerKind.DEATH, MarkerKind.CONTACT_LOST, MarkerKind.END)
AROUND_NS = 5 * 60 * 10**9
"""The range that is shown of the first page: this long before and after the end."""


def asked(request: Row, *, now_ns: int) -> dict[str, str | int] | None:
    """The parameters of `/api/markers` that find the end of a request's engine; None where the request was not cut off by
    one."""
    if request["outcome"] not in NEVER_ENDED:
        return None
    return {"engine": request["engine"], "since_ns": request["started_ns"], "until_ns": now_ns}


def found(request: Row, marked: Iterable[Row]) -> Row | None:
    """The end among these markers: the first one, since the engine may have been launched again and have ended again."""
    ends = (each for each in marked if each["kind"] in ENDS and each["engine"] == request["engine"])
    return min(ends, key=lambda each: each["at_ns"], default=None)


def sentence(end: Row, *, now_ns: int) -> str:
    """Which engine ended, when, and of what, if that is known."""
    at = text.clock(end["at_ns"], now_ns=now_ns).partition(".")[0]
    return f"At {at} UTC, engine {markers.sentence(end)}."


def link(end: Row) -> Link:
    """The first page, around the end: its sentences name it, and lead on."""
    return "overview", TimeRange(end["at_ns"] - AROUND_NS, end["at_ns"] + AROUND_NS).address
