"""The thread with which vLLM's NIXL push connector writes, without a thread.

In each tick of the network it runs until it would wait."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import SimpleNamespace
from typing import Any

from kvtrail.connector.known.nixl.stand_in.network import Network


class _Waits(BaseException):
    """Raised where the thread would wait. It is not an `Exception`, so that it ends the thread's loop."""

    def __init__(self, event: _Event, timeout: float | None) -> None:
        self.event, self.timeout = event, timeout


class _Event:
    """Replaces `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            raise _Waits(self, timeout)
        return True


class _Writer:
    """Replaces `threading.Thread`. Its loop restarts when the event that it waits for is set, or at the next tick if
    the wait has a timeout."""

    def __init__(self, network: Network, target: Callable[[], None]) -> None:
        self._network, self._target = network, target
        self._waits: _Waits | None = None

    def start(self) -> None:
        self._network.soon(self._run)

    def join(self, timeout: float | None = None) -> None:
        """Stop running: the caller has asked the thread to stop."""
        self._target = _stopped

    def _run(self) -> None:
        waits = self._waits
        if waits is None or waits.timeout is not None or waits.event.is_set():
            if waits is not None and waits.timeout is None:
                waits.event.clear()
            try:
                self._target()
            except _Waits as waiting:
                self._waits = waiting
        if self._target is not _stopped:
            self._network.soon(self._run)


def _stopped() -> None:
    """What a thread runs after its end."""


def threading(network: Network) -> Any:
    """In place of the module `threading`."""
    return SimpleNamespace(Thread=lambda *, target, **_: _Writer(network, target), Event=_Event, Lock=Lock)
