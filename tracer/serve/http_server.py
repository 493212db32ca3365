"""The HTTP server: uvicorn, with limits for idle connections and an orderly shutdown."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvtrail.tracer.serve.access import OPEN_PATHS, Tls
from kvtrail.tracer.serve.limits import RETRY_S, Limits

UNAVAILABLE = 503
_TICKS = 10
"""Calls of uvicorn's `on_tick` per second."""


class HttpServer(uvicorn.Server):
    """Serves until SIGINT or SIGTERM, and then returns."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        drain_s: float,
        on_refusal: Callable[[], None] = lambda: None,
        tls: Tls | None = None,
    ) -> None:
        """
        Args:
            drain_s: seconds that running requests may take after the signal.
            on_refusal: called when a request is rejected because there are too many connections.
        """
        config = uvicorn.Config(
            self._admit,
            interface="asgi3",
            log_config=None,  # ours: it logs uvicorn's messages in the same form
            log_level="warning",
            timeout_graceful_shutdown=int(drain_s),
            **({} if tls is None else tls.for_uvicorn()),
        )
        super().__init__(config)
        self._app, self._limits = app, limits
        self._on_refusal = on_refusal
        self._waiting: dict[Any, float] = {}
        """Connections without a current request, and the time since when they wait."""

    def serve_on(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # uvicorn stops at the signal, and raises it again afterwards
        self.run(sockets=[listener])

    async def on_tick(self, counter: int) -> bool:
        """Override uvicorn's method, which it calls ten times a second."""
        if counter % _TICKS == 0:
            self._close_stalled(time.monotonic())
        return await super().on_tick(counter)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. If there are too many connections, idle ones are closed; if none is idle, only liveness probes are
        answered."""
        surplus = len(self.server_state.connections) - self._limits.max_connections
        is_full = surplus > 0 and self._close_stalled(time.monotonic()) < surplus
        if is_full and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            self._on_refusal()
            headers = {"retry-after": str(RETRY_S), "connection": "close"}
            await PlainTextResponse("too many connections", UNAVAILABLE, headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _close_stalled(self, now_s: float) -> int:
        """Close idle connections. uvicorn closes a connection that is idle between two requests, but not one that has sent
        half a request. If there are too many connections, the longest idle ones are closed at once. Returns the number
        closed."""
        waiting = [each for each in self.server_state.connections if _is_waiting(each)]
        self._waiting = {each: self._waiting.get(each, now_s) for each in waiting}
        surplus = len(self.server_state.connections) - self._limits.max_connections
        stalled = [
            each
            for number, each in enumerate(sorted(waiting, key=self._waiting.__getitem__))
            if number < surplus or now_s - self._waiting[each] > self._limits.receive_seconds
        ]
        for each in stalled:
            each.transport.close()
        return len(stalled)


def _is_waiting(connection: Any) -> bool:
    """Whether uvicorn is still reading the head of a connection's next request."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or cycle.response_complete
