"""The time range that a page shows, and how it is written in the page's address."""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.dashboard.content import text

RANGES = {"15 min": 15 * 60, "1 h": 3600, "6 h": 6 * 3600, "24 h": 24 * 3600, "7 d": 7 * 24 * 3600}
"""The choices, in seconds back from now."""
DEFAULT = "1 h"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `since_ns` to `until_ns`, Unix nanoseconds; `pinned` if the address names both."""

    since_ns: int
    until_ns: int
    pinned: bool = False

    @property
    def query(self) -> dict[str, int]:
        """The API's parameters."""
        return {"since_ns": self.since_ns, "until_ns": self.until_ns}

    @property
    def address(self) -> dict[str, str]:
        """The parameters of a page's address: Unix milliseconds."""
        return {"since": str(self.since_ns // 10**6), "until": str(self.until_ns // 10**6)}

    def text(self, *, now_ns: int) -> str:
        """In words: 12:00:01 to 13:00:01 UTC."""
        ends = (text.clock(ns, now_ns=now_ns).rpartition(".")[0] for ns in (self.since_ns, self.until_ns))
        return f"{' to '.join(ends)} UTC"


def time_range(*, chosen: str, since: str, until: str, now_ns: int) -> TimeRange:
    """The range of an address: a pinned one if it names both ends, else the `chosen` range back from now."""
    ends = [int(each) for each in (since, until) if each.isdecimal() and len(each) <= 13]
    if len(ends) == 2 and ends[0] < ends[1]:
        return TimeRange(ends[0] * 10**6, ends[1] * 10**6, pinned=True)
    return TimeRange(now_ns - RANGES.get(chosen, RANGES[DEFAULT]) * 10**9, now_ns)
