"""Short histories that the pages show, and sending them to a tracer as if they had happened a moment ago."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from history import START_NS, goodbyes, heartbeats, history
from msgspec.structs import replace
from processes import Tracer
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event

MINUTE_NS = 60 * 10**9
STALE = """
L 750 c0 h0 -> 0
A 0
S 0+35
P
L 750 c384 h256 -> 0
L 750 c384 h256 -> 256 cached
A 256 !Mismatch in tokens to load
"""
HEALED = """
L 750 c0 h256 -> 256
A 256
S 256+494
P
L 750 c384 h256 -> 0 cached healed 256
L 750 c384 h256 -> 0 cached healed 256
A 0
S 384+366
end
"""
"""The guard has refused the stale answers."""
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


def middle_of_a_minute_ns() -> int:
    """The latest one, Unix nanoseconds. Sums are made minute by minute, and must not depend on the second at which a test
    runs."""
    return time.time_ns() // MINUTE_NS * MINUTE_NS - MINUTE_NS // 2


def feed_over_time(
    tracer: Tracer, engine: str, version: str, stories: Mapping[int, str], *, model: str = "llama", ends: bool = False,
    now_ns: int | None = None,
) -> None:  # fmt: skip
    """An engine of this version that did each of these that many minutes ago, and then sends a heartbeat; if it `ends`, its
    last. Its requests have the minutes in their ids. Engines that are compared are fed with one `now_ns`."""
    events: list[Event] = []
    now_ns = middle_of_a_minute_ns() if now_ns is None else now_ns
    for minutes, text in stories.items():
        own = history(text, request=f"{engine}-{minutes}-0123abcd", recorder=f"rec-{engine}", engine=engine)
        shift_ns = now_ns - minutes * MINUTE_NS - own[0].start_ns
        events += [
            replace(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns, sequence=e.sequence + len(events))
            for e in own
        ]
    beats = goodbyes(events) if ends else heartbeats(events, later_s=1)
    about = {semconv.ENGINE_VERSION.key: version, semconv.MODEL.key: model}
    tracer.post(encoded([*events, *(replace(each, scheduler_step=1) for each in beats)], about))  # type: ignore[call-arg]
