"""How often a page asks again: what is over changes no more, and a tab that shows it shall cost nothing."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.ledger.recorder_clocks import HOLDS_NS
from kvtrail.tracer.liveness.outcome import Outcome

EVERY_S = 2
"""How often a page asks the tracer again; `SLOW_S` is for pages about long time ranges."""
SLOW_S = 5
RARELY_S = 30
"""The same, where only a late span or the verdict of a rule with a deadline can come."""
LATE_NS = 60 * 10**9
"""Spans are hardly ever later than this."""
ENDED = (Outcome.FINISHED, Outcome.ABORTED, Outcome.FAILED, Outcome.LOST)


def of_requests(requests: Iterable[Row], *, now_ns: int, every_s: float = EVERY_S) -> float | None:
    """In how many seconds to ask about requests again; None: never, since all have ended for longer than any rule waits."""
    last_ns = 0
    for request in requests:
        if request["outcome"] not in ENDED:
            return every_s
        last_ns = max(last_ns, request["last_ns"])
    return _since(last_ns, now_ns=now_ns, every_s=every_s)


def of_range(shown: TimeRange, *, now_ns: int, every_s: float = EVERY_S) -> float | None:
    """In how many seconds to ask about a time range again; None: never, since all in it is judged."""
    return every_s if shown.relative else _since(shown.until_ns, now_ns=now_ns, every_s=every_s)


def soonest(*each_s: float | None) -> float | None:
    """The shortest of these; None: never."""
    return min((seconds for seconds in each_s if seconds is not None), default=None)


def _since(last_ns: int, *, now_ns: int, every_s: float) -> float | None:
    past_ns = now_ns - last_ns
    if past_ns < LATE_NS:
        return every_s
    return RARELY_S if past_ns < HOLDS_NS else None
