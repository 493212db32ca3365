"""The HTTP server: uvicorn, with an end to connections that only wait, and with an end of its own in good order."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from kvtrail.tracer.serve.access import Tls

MOST_CONNECTIONS = 1_000
"""Beyond these, a request is answered with 503."""
HEADERS_S = 30.0
"""How long a connection may take to say what it wants."""
_TICKS = 10
"""Of uvicorn, in a second."""


class HttpServer(uvicorn.Server):
    """Serves until SIGINT or SIGTERM, and then returns."""

    def __init__(self, app: Any, *, drain_s: float, on_exit: Callable[[], None], tls: Tls | None = None) -> None:
        """
        Args:
            drain_s: how long requests that are being answered may still take after the signal.
            on_exit: called at the signal: answers without an end should end now.
        """
        config = uvicorn.Config(
            app,
            log_level="warning",
            timeout_graceful_shutdown=int(drain_s),
            limit_concurrency=MOST_CONNECTIONS,
            **({} if tls is None else tls.for_uvicorn()),
        )
        super().__init__(config)
        self._on_exit = on_exit
        self._waiting: dict[Any, float] = {}
        """Connections that have not asked anything, or not yet again, and since when."""

    def serve_on(self, listener: socket.socket) -> None:
        """Serve on a socket that is bound."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _nothing_more)
        self.run(sockets=[listener])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Of uvicorn, at a signal."""
        self._on_exit()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Of uvicorn."""
        if counter % _TICKS == 0:
            self._close_stalled(time.monotonic())
        return await super().on_tick(counter)

    def _close_stalled(self, now_s: float) -> None:
        """uvicorn ends a connection that is idle between two requests, but not one that sends half of one."""
        waiting = [each for each in self.server_state.connections if _is_waiting(each)]
        self._waiting = {each: self._waiting.get(each, now_s) for each in waiting}
        for each, since_s in self._waiting.items():
            if now_s - since_s > HEADERS_S:
                each.transport.close()


def _is_waiting(connection: Any) -> bool:
    """Whether uvicorn is still reading the head of a connection's next request."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or cycle.response_complete


def _nothing_more(number: int, frame: FrameType | None) -> None:
    """uvicorn ends at the signal, and raises it once more when it has ended: the rest of the process must not end by it."""
