"""The time range of a page: in its URL, as typed by a user, and in words.

In a URL it is `from` and `to`, as in Grafana: relative to now (`now-1h`, `now`) or moments (`2026-11-21T14:59:00Z`, or
`1763737140000`, in Unix milliseconds). A user may type the same, or times of day (`14:59`). All times are UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kvtrail.tracer.model.findings import clock, day

RANGES = {"15 min": "15m", "1 h": "1h", "6 h": "6h", "24 h": "24h", "7 d": "7d"}
"""The quick choices and their lengths."""
DEFAULT = "now-1h"
NOW = "now"
LATEST_NS = 4_102_444_800 * 10**9
"""The year 2100; later moments are rejected."""
LEAST_NS = 10**9
"""The minimum length of a range."""
_S = 10**9
_UNITS = {"s": _S, "m": 60 * _S, "h": 3600 * _S, "d": 86_400 * _S}
_RELATIVE = re.compile(r"now(?:-(\d{1,6})([smhd]))?")
_MILLISECONDS = re.compile(r"\d{13}")
_LENGTH = re.compile(r"(?:last\s+)?(\d{1,6})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)")
_OF_DAY = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?")
_BETWEEN = re.compile(r"\s+(?:to|until|-)\s+|\s*–\s*")  # noqa: RUF001 - people paste dashes
EXAMPLES = "14:59, 14:20 to 14:59, 2026-11-20 14:59, now-2h, or 90m"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `since_ns` to `until_ns`, in Unix nanoseconds. `relative` has both ends as written (`now-1h to now`) if the range
    moves with the clock."""

    since_ns: int
    until_ns: int
    relative: str | None = None

    @property
    def query(self) -> dict[str, int]:
        """The API's parameters."""
        return {"since_ns": self.since_ns, "until_ns": self.until_ns}

    @property
    def address(self) -> dict[str, str]:
        """The parameters of a page's URL."""
        begin, end = self.field().split(" to ")
        return {"from": begin, "to": end} if self.relative else {"from": _iso_of(begin), "to": _iso_of(end)}

    @property
    def choice(self) -> str | None:
        """The quick choice that equals this range, if any."""
        return next((name for name, length in RANGES.items() if self.relative == f"now-{length} to now"), None)

    def field(self) -> str:
        """As a user would type it: `now-1h to now`, or `2026-11-20 20:11:25 to 2026-11-21 20:11:25`."""
        return self.relative or " to ".join(map(_moment, (self.since_ns, self.until_ns)))

    def narrowed(self, begin_ms: float, end_ms: float) -> TimeRange | None:
        """The part drawn on a chart, in Unix milliseconds; None if it is too short to show anything."""
        begin_ns, end_ns = sorted(round(at_ms) * 10**6 for at_ms in (begin_ms, end_ms))
        return _between(max(begin_ns, self.since_ns), min(end_ns, self.until_ns))


def of_query(query: Mapping[str, str], *, now_ns: int) -> TimeRange:
    """The range in a URL's `from` and `to`. Users may also write URLs by hand: if one cannot be parsed, the default up to
    now."""
    begin, end = query.get("from", DEFAULT), query.get("to", NOW)
    return _of_ends(begin, end, now_ns=now_ns) or of_query({}, now_ns=now_ns)


def typed(text: str, *, now_ns: int, shown: TimeRange) -> TimeRange:
    """The range that a user typed. A single moment is the middle of a range as long as the `shown` one; a time before now
    (`now-2h`) or a length (`90m`) extends to now. A time of day is its latest occurrence.

    Raises:
        ValueError: it cannot be parsed; the text has examples.
    """
    wanted = re.sub(r"\bnow\s*-\s*(?=\d)", "now-", text.strip().lower())
    if length := _LENGTH.fullmatch(wanted):
        wanted = f"now-{length[1]}{length[2][0]}"
    ends = _BETWEEN.split(wanted)
    if len(ends) == 1 and _RELATIVE.fullmatch(wanted):
        ends = [wanted, NOW]
    found = None
    if len(ends) == 2:
        found = _of_ends(*_days_given(*ends), now_ns=now_ns)
    elif len(ends) == 1 and (at_ns := parsed(wanted, now_ns=now_ns)) is not None:
        half = (shown.until_ns - shown.since_ns) // 2
        found = _between(at_ns - half, at_ns + half)
    if found is None:
        raise ValueError(f"“{text.strip()}” is no time range. Type for example {EXAMPLES}.")
    return found


def parsed(text: str, *, now_ns: int) -> int | None:
    """A moment in Unix nanoseconds: relative to now, a time of day, a date with or without a time, or Unix milliseconds; None
    if invalid."""
    wanted = text.strip().lower()
    if relative := _RELATIVE.fullmatch(wanted):
        return now_ns - (int(relative[1]) * _UNITS[relative[2]] if relative[1] else 0)
    if _OF_DAY.fullmatch(wanted):
        at_ns = _iso(f"{day(now_ns)} {wanted if wanted[1:2].isdecimal() else f'0{wanted}'}")
        return at_ns - _UNITS["d"] if at_ns is not None and at_ns > now_ns else at_ns
    if _MILLISECONDS.fullmatch(wanted):
        at_ns = int(wanted) * 10**6
        return at_ns if at_ns <= LATEST_NS else None
    return _iso(wanted.upper())


def _of_ends(begin: str, end: str, *, now_ns: int) -> TimeRange | None:
    ends = [parsed(each, now_ns=now_ns) for each in (begin, end)]
    if ends[0] is None or ends[1] is None:
        return None
    # 23:50 to 00:10: the end is on the next day.
    if ends[1] < ends[0] and _OF_DAY.fullmatch(begin.strip()) and _OF_DAY.fullmatch(end.strip()):
        ends[0] -= _UNITS["d"]
    is_relative = all(_RELATIVE.fullmatch(each.strip().lower()) for each in (begin, end))
    words = " to ".join(each.strip().lower() for each in (begin, end))
    return _between(ends[0], ends[1], words if is_relative else None)


def _days_given(begin: str, end: str) -> tuple[str, str]:
    """A time of day after a date is on that day: 2026-11-20 14:20 to 14:59."""
    date = re.match(r"(\d{4}-\d{2}-\d{2})[ t]", begin)
    return begin, f"{date[1]} {end}" if date and _OF_DAY.fullmatch(end) else end


def _between(since_ns: int, until_ns: int, relative: str | None = None) -> TimeRange | None:
    since_ns = max(0, since_ns)
    if since_ns + LEAST_NS > until_ns or until_ns > LATEST_NS:
        return None
    return TimeRange(since_ns, until_ns, relative)


def _iso(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    at_ns = since // timedelta(microseconds=1) * 1000
    return at_ns if 0 <= at_ns <= LATEST_NS else None


def _moment(at_ns: int) -> str:
    """2026-11-20 20:11:25, with milliseconds if not zero."""
    return f"{day(at_ns)} {clock(at_ns).removesuffix('.000')}"


def _iso_of(moment: str) -> str:
    return moment.replace(" ", "T") + "Z"
