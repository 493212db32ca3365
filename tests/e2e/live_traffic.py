"""Requests that keep coming while somebody looks: two made-up engines, whose spans reach a tracer over OTLP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from processes import SLOW_S, Tracer
from traffic import Engine
from wire import encoded

ENGINES = ("llama-a", "llama-b")
EVERY_S = 0.2
"""From one request to the next."""
LASTED_NS = 20 * 10**9
"""They began so long ago, so that most of them have ended when they come."""


@contextmanager
def flowing(tracer: Tracer, engines: Sequence[str] = ENGINES, *, stale_every: int = 5) -> Iterator[None]:
    """Traffic of these engines in turn while the context lasts; every `stale_every`-th request fails of LMCache #2158."""
    stop, begun = threading.Event(), threading.Event()
    made = [Engine(name) for name in engines]

    def send() -> None:
        while not stop.is_set():
            for engine in made:
                is_stale = engine.begun % stale_every == stale_every - 1
                events = engine.request(time.time_ns() - LASTED_NS, is_stale=is_stale)
                tracer.post(encoded(events, about={"service.name": "chat", "kvtrail.model": "llama"}))
                begun.set()
                stop.wait(EVERY_S)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        assert begun.wait(SLOW_S), "nothing could be sent"
        yield
    finally:
        stop.set()
        thread.join(SLOW_S)
