"""Live traffic: made-up requests that keep arriving while a page is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from processes import Tracer
from traffic import Engine, Recording
from wire import encoded

from kvtrail.tracer.events.events import Event, Heartbeat

S = 10**9
EVERY_S = 0.5
CHAT = {"service.name": "chat", "kvtrail.model": "llama"}
"""What the engines of a chat say of themselves."""


def post(tracer: Tracer, events: Sequence[Event], about: Mapping[str, str] | None = None) -> None:
    """Send events of one recorder, with this in its resource too, some at a time."""
    for first in range(0, len(events), 500):
        tracer.post(encoded(events[first : first + 500], about))


@contextmanager
def live_traffic(
    tracer: Tracer,
    *engines: tuple[Engine, float, int],
    seconds: int = 120,
    about: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Engines that have served for `seconds`, and go on: each with the milliseconds between its requests, and how many
    of them come to one stale answer (0 for none)."""
    from_ns = time.time_ns() - seconds * S
    recordings = [
        Recording(engine, from_ns=from_ns, every_ms=every_ms, stale_every=stale_every)
        for engine, every_ms, stale_every in engines
    ]
    ended = threading.Event()

    def send_what_has_happened() -> None:
        for recording in recordings:
            post(tracer, recording.until(time.time_ns()), about)

    def go_on() -> None:
        while not ended.wait(EVERY_S):
            send_what_has_happened()

    send_what_has_happened()
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def chatting(tracer: Tracer, *engines: str) -> AbstractContextManager[None]:
    """These engines serve a chat; every fifth request fails of LMCache #2158."""
    return live_traffic(tracer, *((Engine(name), 400, 5) for name in engines), seconds=20, about=CHAT)


def goodbye(engine: Engine, *, sequence: int, at_ns: int, ended_by: str | None = None) -> Heartbeat:
    """The last heartbeat of an engine's recorder, and of what the engine ended."""
    return Heartbeat(
        engine=engine.name, recorder=f"recorder-of-{engine.name}", sequence=sequence, connector="", role="", rank=0,
        start_ns=at_ns, end_ns=at_ns, recorder_closed=True, recorder_recorded=sequence, scheduler_step=0,
        recorder_ended_by=ended_by,
    )  # fmt: skip
