"""What stands before the gRPC server: it counts connections and bytes, which gRPC's library reads without any bound.

That library receives a message in full before it looks at its length, and gives no account of what it holds. So connections
are accepted here, where TLS ends too, and are passed on to the server's own socket frame by frame
(https://www.rfc-editor.org/rfc/rfc9113#section-4). Nothing is decoded but the heads of frames and the five bytes before each
message. A message that is too long is replaced, byte for byte, by a short one that says so: compression of headers and flow
control stay as they were, and the server answers as it does to any call.

Where too much is held, the sender that holds most goes; where too many wait, the one that has waited longest. So a hostile
sender makes room for its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrail.tracer.serve.access import Tls
from kvtrail.tracer.serve.limits import Limits
from kvtrail.tracer.serve.metrics.metrics import Rejected

logger = logging.getLogger("kvtrail")

TOO_LARGE = b"\x07kvtrail: this message was too large"
"""Stands for a message that is not passed on. It is no OTLP: a sender who writes it himself is refused, as he asked."""
PART = 32_768
"""Bytes that are read at a time, and that a connection may have read ahead, twice."""
MAX_UNFINISHED = 64
"""Calls with only a part of their message here."""
MAX_CALLS = 256
"""Of a connection, that were not answered: many times what the server offers."""
MAX_HELD = 64
"""Frames in which the bytes before a message come. Five would do."""
IDLE_S = 600
"""A connection that is not used for so long is closed; recorders send a heartbeat every few seconds."""
LOOK_EVERY_S = 1.0
BACKLOG = 128
"""Connections that the system keeps until they are accepted."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD, _LONGEST_FRAME = 9, 16_384
"""Bytes of a frame's head; and of a frame, as long as the server has not offered more, which it never does."""
_DATA, _HEADERS, _RST_STREAM = 0, 1, 3
_END_STREAM, _PADDED = 1, 8
_PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""
_INSTEAD = bytes((0, *len(TOO_LARGE).to_bytes(4, "big"))) + TOO_LARGE


class _Broken(ValueError):
    """A peer does not speak HTTP/2 as clients of gRPC do."""


@dataclass(slots=True)
class _Call:
    """A call with an answer that has not been sent.

    Attributes:
        since_s: when it began.
        came: bytes of its message that have come.
        prefix: those before the message, as far as they have come.
        held: frames that wait for the rest of the prefix.
        is_replaced: whether its message is too long.
        is_whole: whether all of it has come.
    """

    since_s: float
    came: int = 0
    prefix: bytearray = field(default_factory=bytearray)
    held: list[tuple[bytes, int, int]] = field(default_factory=list)
    is_replaced: bool = False
    is_whole: bool = False


class _Connection:
    """A connection, and what it holds."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.calls: dict[int, _Call] = {}
        self.bytes = 0
        self.since_s = time.monotonic()
        """When it was used last."""
        self.is_greeted = False
        """Whether it has said that it speaks HTTP/2."""
        self._latest = 0
        """The number of its latest call: they rise."""
        self._is_closed = False
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def unfinished_s(self) -> float | None:
        """When the oldest of its calls with an incomplete message began; None if there is none."""
        return min((call.since_s for call in self.calls.values() if not call.is_whole), default=None)

    async def serve(self, accepted: socket.socket) -> None:
        """Pass on what comes until one side ends."""
        if (task := asyncio.current_task()) is not None:
            self._tasks.append(task)
        try:
            if self._is_closed:
                return
            reader, sender = await self._gate.opened(accepted)
            self._writers.append(sender)
            preface = await reader.readexactly(len(_PREFACE))
            if preface != _PREFACE:
                return
            self.is_greeted = True
            answers, server = await asyncio.open_unix_connection(self._gate.behind, limit=PART)
            self._writers.append(server)
            server.write(preface)
            pumps = [asyncio.create_task(each) for each in (self._up(reader, server), self._down(answers, sender))]
            self._tasks += pumps
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.IncompleteReadError):  # it went away, or cannot shake hands
            pass
        finally:
            self._tasks = self._tasks[1:]
            self.close()

    def close(self) -> None:
        """End it, and forget what it held."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        for number in list(self.calls):
            self._ended(number)

    async def _up(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """From the sender to the server."""
        with suppress(_Broken, OSError):
            waiting = bytearray()
            while part := await reader.read(PART):
                self.since_s = time.monotonic()
                waiting += part
                at = 0
                passed: list[bytes] = []
                while len(waiting) - at >= _HEAD:
                    length = int.from_bytes(waiting[at : at + 3], "big")
                    if length > _LONGEST_FRAME:
                        raise _Broken("a frame longer than was offered")
                    end = at + _HEAD + length
                    if end > len(waiting):
                        break
                    passed += self._frame(bytes(waiting[at:end]))
                    at = end
                    if self._is_closed:
                        return
                del waiting[:at]
                server.writelines(passed)
                await server.drain()

    def _frame(self, frame: bytes) -> list[bytes]:
        """What is passed on for a frame."""
        kind, flags, number = frame[3], frame[4], int.from_bytes(frame[5:_HEAD], "big") & 0x7FFFFFFF
        if kind == _HEADERS and number not in self.calls:
            if number <= self._latest or len(self.calls) >= MAX_CALLS:
                raise _Broken("a call that the server would not hear of, and so would never answer")
            self._latest = number
            self.calls[number] = _Call(self.since_s)
        call = self.calls.get(number)
        if call is None:
            return [frame]
        if kind == _RST_STREAM:
            self._ended(number)
            return [frame]
        passed = [frame] if kind != _DATA else self._data(call, frame, flags)
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            call.is_whole = True
            passed = [each for each, *_ in call.held] + passed if call.held else passed
            call.held = []
        elif kind == _HEADERS:
            self._gate.make_room()
        return passed

    def _data(self, call: _Call, frame: bytes, flags: int) -> list[bytes]:
        first, end = _HEAD, len(frame)
        if flags & _PADDED:
            if end == first:
                raise _Broken("padding of an unknown length")
            first, end = _HEAD + 1, end - frame[_HEAD]
            if end < first:
                raise _Broken("more padding than data")
        self.bytes += end - first
        self._gate.bytes += end - first
        at, call.came = call.came, call.came + end - first
        if len(call.prefix) < _PREFIX:
            call.prefix += frame[first : min(end, first + _PREFIX - len(call.prefix))]
            call.held.append((frame, first, at))
            if len(call.held) > MAX_HELD:
                raise _Broken("empty frames, which count for no bytes")
            if len(call.prefix) < _PREFIX:
                return []
            call.is_replaced = int.from_bytes(call.prefix[1:], "big") > self._gate.limits.request_bytes
            frames, call.held = call.held, []
        else:
            frames = [(frame, first, at)]
        if self._gate.bytes > self._gate.limits.waiting_bytes:
            self._gate.make_room()
        if not call.is_replaced:
            return [each for each, *_ in frames]
        return [_replaced(*each) for each in frames]

    async def _down(self, answers: asyncio.StreamReader, sender: asyncio.StreamWriter) -> None:
        """From the server to the sender: what ends calls is looked at."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while not self._is_closed:
                head = await answers.readexactly(_HEAD)
                length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                frame = head + await answers.readexactly(length)
                sender.write(frame)
                if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                    self._ended(int.from_bytes(head[5:], "big") & 0x7FFFFFFF)
                await sender.drain()

    def _ended(self, number: int) -> None:
        call = self.calls.pop(number, None)
        if call is not None:
            self.bytes -= call.came
            self._gate.bytes -= call.came


def _replaced(frame: bytes, first: int, at: int) -> bytes:
    """A frame of a message that is replaced; its data begin at `first`, and with byte `at` of the message."""
    length = len(frame) - first
    return frame[:first] + _INSTEAD[at : at + length].ljust(length, b"\0")


class Gate:
    """Accepts the connections to the gRPC port, on a thread of its own.

    Attributes:
        behind: the socket of the gRPC server.
        bytes: of messages that have come, in whole or in part, of calls that were not answered.
    """

    def __init__(
        self,
        listener: socket.socket,
        behind: Path,
        *,
        limits: Limits,
        most_connections: int,
        tls: Tls | None = None,
        on_refusal: Callable[[Rejected], None] = lambda why: None,
    ) -> None:
        """`on_refusal` is called when a connection is closed because there are too many, or because it holds too much."""
        self.behind, self.limits, self.bytes = str(behind), limits, 0
        self._most_connections = most_connections
        self._on_refusal = on_refusal
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="otlp-gate", daemon=True)
        self._thread.start()
        self._listener, self._tls = listener, None if tls is None else tls.for_gate()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.call_soon_threadsafe(lambda: self._start(self._accept()))
        self._loop.call_soon_threadsafe(lambda: self._start(self._look()))

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def close(self) -> None:
        """Accept no more, and end all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    async def opened(self, accepted: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The two directions of a connection, once hands are shaken where there is TLS."""
        # Else the system keeps each small frame of an answer until the one before is confirmed, which takes 40 ms. asyncio
        # does this for sockets with a named protocol, and that of an accepted one is not named.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader(limit=PART, loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    def make_room(self) -> None:
        """Close connections until what the others hold is within the limits."""
        while self.bytes > self.limits.waiting_bytes:
            self._cut_off(max(self._connections, key=lambda each: each.bytes), Rejected.MEMORY)
        unfinished = [
            (call.since_s, connection)
            for connection in self._connections
            for call in connection.calls.values()
            if not call.is_whole
        ]
        if len(unfinished) > MAX_UNFINISHED:
            self._cut_off(min(unfinished, key=lambda each: each[0])[1], Rejected.SLOW)

    def _cut_off(self, connection: _Connection, why: Rejected) -> None:
        self._on_refusal(why)
        self._connections.discard(connection)
        connection.close()

    def _start(self, what: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:  # no descriptor is left, or the sender went away
                logger.warning("a connection to the gRPC port could not be accepted: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            accepted.setblocking(False)
            while len(self._connections) >= self._most_connections:
                idle = [each for each in self._connections if not each.calls] or [*self._connections]
                self._cut_off(min(idle, key=lambda each: each.since_s), Rejected.CONNECTIONS)
            self._connections.add(connection := _Connection(self))
            self._start(self._serve(connection, accepted))

    async def _serve(self, connection: _Connection, accepted: socket.socket) -> None:
        try:
            await connection.serve(accepted)
        finally:
            self._connections.discard(connection)
            accepted.close()

    async def _look(self) -> None:
        """Close what is idle, and what does not come."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = time.monotonic()
            for connection in [*self._connections]:
                began_s = connection.unfinished_s if connection.is_greeted else connection.since_s
                if began_s is not None and now_s - began_s > self.limits.receive_seconds:
                    self._cut_off(connection, Rejected.SLOW)
                elif not connection.calls and now_s - connection.since_s > IDLE_S:
                    connection.close()

    async def _end(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
