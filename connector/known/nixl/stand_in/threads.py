"""Runs the threads of vLLM's NIXL connectors without threads.

In a handshake vLLM's own listener answers vLLM's own worker within one call. The listener is a function that vLLM runs in a
thread; here it ends when its socket has no further question. The thread in which the push connector writes runs in each tick
of the network, until it would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from typing import Any

import zmq

from kvtrail.connector.known.nixl.stand_in.network import Network


class _Idle(BaseException):
    """Raised when there is no further question. It is not an `Exception`, so that it ends the listener."""


class SideChannel:
    """The listeners of all engines, by their addresses."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._listeners: dict[str, _Listener] = {}
        self._asked: list[bytes] = []
        self._answers: list[list[bytes]] = []

    def answer(self, address: str, question: bytes) -> list[bytes]:
        """The answer of the listener at this address.

        Raises:
            zmq.Again: there is no listener, or it has stopped.
        """
        listener = self._listeners.get(address)
        if listener is None or listener.stopped:
            raise zmq.Again
        self._asked.append(question)
        listener.run()
        return self._answers.pop()

    @contextmanager
    def socket(self, socket_type: Any, address: str) -> Iterator[Any]:
        """Replaces `zmq_ctx`: the listener's socket, or the socket of a caller."""
        if socket_type == zmq.ROUTER:
            yield SimpleNamespace(
                setsockopt=lambda *_: self._listens(address), recv_multipart=self._next, send_multipart=self._answered
            )
            return
        asked: list[bytes] = []
        yield SimpleNamespace(
            setsockopt=lambda *_: None, send=asked.append, recv_multipart=lambda: self.answer(address, asked.pop())
        )

    def thread(self, *, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> _Listener:
        """Replaces `threading.Thread`."""
        self._starting = _Listener(target, args)
        return self._starting

    def executor(self, **_: Any) -> Any:
        """Replaces `ThreadPoolExecutor`: submitted tasks run in a later tick of the network."""
        return SimpleNamespace(submit=self._submit, shutdown=lambda **_: None)

    def _submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = task(*arguments)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._network.later(run)
        return future

    def _listens(self, address: str) -> None:
        before = self._listeners.get(address)
        if before is None or before.stopped:  # a restarted engine has the address of the dead one
            self._listeners[address] = self._starting

    def _next(self) -> tuple[bytes, bytes, bytes]:
        if not self._asked:
            raise _Idle
        return b"asker", b"", self._asked.pop()

    def _answered(self, parts: tuple[bytes, ...]) -> None:
        self._answers.append(list(parts[2:]))


class _Listener:
    """vLLM's listener. It runs at each question."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._target, self._args, self.stopped = target, args, False

    def start(self) -> None:
        self.run()

    def run(self) -> None:
        try:
            self._target(*self._args)
        except _Idle:
            return

    def join(self) -> None:
        self.stopped = True


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
    """The target of a thread that has ended."""


def threading(network: Network) -> Any:
    """Replaces the module `threading`."""
    return SimpleNamespace(Thread=lambda *, target, **_: _Writer(network, target), Event=_Event, Lock=Lock)
