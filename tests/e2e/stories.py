"""Short histories that the pages show, and sending them to a tracer as if they had happened a moment ago."""

from __future__ import annotations

import time
from collections.abc import Sequence

from history import START_NS, history
from msgspec.structs import replace
from processes import Tracer
from wire import encoded

from kvtrail.tracer.events.events import Event

STALE = """
L 750 c0 h0 -> 0
A 0
S 0+35
P
L 750 c384 h256 -> 0
L 750 c384 h256 -> 256 cached
A 256 !Mismatch in tokens to load
"""
HEALTHY = """
L 640 c0 h512 -> 512
A 512
S 512+48
end
"""


def now(events: Sequence[Event]) -> list[Event]:
    """The same history, begun a second ago: the tracer deletes what is old."""
    later_ns = time.time_ns() - 10**9 - START_NS
    return [replace(e, start_ns=e.start_ns + later_ns, end_ns=e.end_ns + later_ns) for e in events]


def feed(tracer: Tracer, text: str, *, request: str, engine: str) -> None:
    events = now(history(text, request=request, engine=engine, recorder=f"recorder-of-{engine}"))
    tracer.post(encoded(events))
