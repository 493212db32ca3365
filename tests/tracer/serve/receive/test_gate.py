"""What the gate before gRPC passes on, and whom it cuts off; no gRPC server is behind it here, and nothing is answered."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import SLOW_S, until

from kvtrail.tracer.serve.limits import MIB, Limits
from kvtrail.tracer.serve.metrics.metrics import Rejected
from kvtrail.tracer.serve.receive.gate import MAX_CALLS, MAX_HELD, TOO_LARGE, Gate

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM, PADDED = 1, 8
HEAD = 9
LONGEST_FRAME = 16_384


def frame(kind: int, flags: int, data: bytes = b"", *, stream: int = 1) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data


def message(length: int, came: int) -> bytes:
    """The frames of a message that says how long it is, with the first bytes of it."""
    plain = struct.pack(">BI", 0, length) + b"m" * came
    return b"".join(frame(DATA, 0, plain[at : at + LONGEST_FRAME]) for at in range(0, len(plain), LONGEST_FRAME))


@dataclass
class Behind:
    """What stands where the server would: it keeps what is passed on, by connection."""

    passed: list[bytearray] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    def take(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            self.connections.append(accepted)
            self.passed.append(bytearray())
            threading.Thread(target=self._read, args=(accepted, self.passed[-1]), daemon=True).start()

    def _read(self, connection: socket.socket, into: bytearray) -> None:
        try:
            while part := connection.recv(1 << 16):
                into += part
        except OSError:
            pass


@dataclass
class Place:
    """A gate, those who come to it, and what is behind."""

    gate: Gate
    port: int
    behind: Behind
    refused: list[Rejected]
    stack: ExitStack

    def connect(self) -> socket.socket:
        """A connection that the gate knows."""
        before = self.gate.connections
        connection = self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=SLOW_S))
        until(lambda: self.gate.connections != before or self.refused)
        return connection


Open = Callable[..., Place]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a gate with these limits."""
    with ExitStack() as stack:

        def open_gate(*, most_connections: int = 10, **limits: int) -> Place:
            before, behind = socket.socket(), socket.socket(socket.AF_UNIX)
            before.bind(("127.0.0.1", 0))
            behind.bind(str(tmp_path / "s"))
            behind.listen()
            stack.callback(behind.close)
            server, refused = Behind(), list[Rejected]()
            threading.Thread(target=server.take, args=(behind,), daemon=True).start()
            gate = Gate(
                before,
                tmp_path / "s",
                limits=Limits(**limits),
                most_connections=most_connections,
                on_refusal=refused.append,
            )
            stack.callback(gate.close)
            return Place(gate, before.getsockname()[1], server, refused, stack)

        yield open_gate


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("first", [1, 3, 5, 6, 500])
def test_a_message_that_is_too_long_is_replaced_byte_for_byte(opened: Open, first: int) -> None:
    """However its beginning is cut into frames; the frames keep their heads, and their padding."""
    place = opened(max_request_mib=1)
    plain = struct.pack(">BI", 0, MIB + 1) + bytes(range(256)) * 4
    parts = [
        frame(DATA, 0, plain[:first]),
        frame(DATA, PADDED, b"\x04" + plain[first:900] + bytes(4)),
        frame(DATA, END_STREAM, plain[900:]),
    ]
    whole = PREFACE + frame(HEADERS, 4) + b"".join(parts)
    place.connect().sendall(whole)
    until(lambda: place.behind.passed and len(place.behind.passed[0]) == len(whole))
    instead = (struct.pack(">BI", 0, len(TOO_LARGE)) + TOO_LARGE).ljust(len(plain), b"\0")
    wanted = [
        frame(DATA, 0, instead[:first]),
        frame(DATA, PADDED, b"\x04" + instead[first:900] + bytes(4)),
        frame(DATA, END_STREAM, instead[900:]),
    ]
    assert bytes(place.behind.passed[0]) == PREFACE + frame(HEADERS, 4) + b"".join(wanted)


def test_a_message_that_is_not_is_passed_on_as_it_is(opened: Open) -> None:
    place = opened(max_request_mib=1)
    sent = PREFACE + frame(HEADERS, 4) + message(MIB, 100_000)
    place.connect().sendall(sent)
    until(lambda: place.behind.passed and bytes(place.behind.passed[0]) == sent)


def test_of_messages_that_are_too_much_together_the_sender_of_most_goes(opened: Open) -> None:
    """Also where all of their calls had begun before the first byte of any message."""
    place = opened(max_waiting_mib=1, max_request_mib=1)
    small, large = place.connect(), place.connect()
    for connection in (small, large):
        connection.sendall(PREFACE + frame(HEADERS, 4))
    until(lambda: len(place.behind.passed) == 2 and all(place.behind.passed))
    small.sendall(message(MIB, 300_000))
    until(lambda: place.gate.bytes > 300_000)
    large.sendall(message(MIB, 600_000))
    assert not place.refused
    until(lambda: place.gate.bytes > 900_000)
    small.sendall(frame(DATA, 0, bytes(LONGEST_FRAME)) * 10)
    assert is_closed(large)
    assert place.refused == [Rejected.MEMORY]
    until(lambda: 300_000 < place.gate.bytes < 500_000)
    small.close()
    until(lambda: place.gate.bytes == place.gate.connections == 0)


@pytest.mark.parametrize("ended_by", ["sender", "server"])
def test_what_a_call_held_is_free_when_it_has_ended(opened: Open, ended_by: str) -> None:
    place = opened()
    connection = place.connect()
    connection.sendall(PREFACE + frame(HEADERS, 4) + message(MIB, 1000))
    until(lambda: place.gate.bytes > 0)
    if ended_by == "sender":
        connection.sendall(frame(RST_STREAM, 0, bytes(4)))
    else:
        until(lambda: bool(place.behind.connections))
        place.behind.connections[0].sendall(frame(HEADERS, END_STREAM))
    until(lambda: place.gate.bytes == 0)
    assert place.gate.connections == 1


def test_of_too_many_connections_the_longest_idle_goes(opened: Open) -> None:
    """One with a call that was not answered stays."""
    place = opened(most_connections=2)
    asking = place.connect()
    asking.sendall(PREFACE + frame(HEADERS, 4))
    until(lambda: place.behind.passed and place.behind.passed[0])
    idle = place.connect()
    place.stack.enter_context(socket.create_connection(("127.0.0.1", place.port), timeout=SLOW_S))
    assert is_closed(idle)
    assert place.refused == [Rejected.CONNECTIONS]
    assert place.gate.connections == 2
    asking.sendall(message(10, 10))
    until(lambda: len(place.behind.passed[0]) > len(PREFACE) + HEAD)


def test_what_is_no_http_2_is_closed(opened: Open) -> None:
    place = opened()
    for sent in (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", PREFACE + b"\xff" * HEAD):
        connection = place.connect()
        connection.sendall(sent)
        assert is_closed(connection)
        until(lambda: place.gate.connections == 0)


BEGUN = frame(HEADERS, 4)
BEGUN_AND_ENDED = HEADERS, 4 | END_STREAM
ATTACKS = {
    "calls that are never answered": b"".join(
        frame(*BEGUN_AND_ENDED, stream=2 * number + 1) for number in range(MAX_CALLS + 1)
    ),
    "a call after a later one": frame(*BEGUN_AND_ENDED, stream=5) + frame(*BEGUN_AND_ENDED, stream=3),
    "empty frames": BEGUN + frame(DATA, 0) * (MAX_HELD + 1),
    "frames of padding": BEGUN + frame(DATA, PADDED, b"\xff" + bytes(255)) * (MAX_HELD + 1),
    "padding of an unknown length": BEGUN + frame(DATA, PADDED),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_only_takes_memory_ends_its_connection(opened: Open, name: str) -> None:
    connection = opened(receive_seconds=600).connect()
    connection.sendall(PREFACE + ATTACKS[name])
    assert is_closed(connection)
