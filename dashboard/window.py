"""The window of time that a page shows, and how it is written into the page's address. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.dashboard import wording

RANGES = {"15 min": 15 * 60, "1 h": 3600, "6 h": 6 * 3600, "24 h": 24 * 3600, "7 d": 7 * 24 * 3600}
"""What can be chosen, in seconds back from now."""
USUAL = "1 h"


@dataclass(frozen=True, slots=True)
class Window:
    """From when until when, in Unix nanoseconds; `pinned` when the address names both."""

    since_ns: int
    until_ns: int
    pinned: bool = False

    @property
    def query(self) -> dict[str, int]:
        """As the api takes it."""
        return {"since_ns": self.since_ns, "until_ns": self.until_ns}

    @property
    def address(self) -> dict[str, str]:
        """As a page's address takes it: Unix milliseconds."""
        return {"since": str(self.since_ns // 10**6), "until": str(self.until_ns // 10**6)}

    def text(self, *, now_ns: int) -> str:
        """In words: 12:00:01 to 13:00:01 UTC."""
        since, until = (
            wording.clock(at_ns, now_ns=now_ns).rpartition(".")[0] for at_ns in (self.since_ns, self.until_ns)
        )
        return f"{since} to {until} UTC"


def window(*, chosen: str, since: str, until: str, now_ns: int) -> Window:
    """The window that an address means: a pinned one if it names its ends, else the chosen range back from now."""
    ends = [_milliseconds(text) for text in (since, until)]
    if ends[0] is not None and ends[1] is not None and ends[0] < ends[1]:
        return Window(ends[0] * 10**6, ends[1] * 10**6, pinned=True)
    return Window(now_ns - RANGES.get(chosen, RANGES[USUAL]) * 10**9, now_ns)


def _milliseconds(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 13 else None
