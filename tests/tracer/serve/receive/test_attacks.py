"""What hostile senders do to a real sidecar: its memory stays bounded and is given back, and innocent posts are taken."""

from __future__ import annotations

import gzip
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import httpx
import pytest
from attackers import (
    ATTACKS,
    BODY,
    EXPORT,
    HEAVIEST,
    TOKEN,
    Attack,
    attacked,
    empty_attributes,
    over_http,
    part,
    request_of,
)
from history import history
from processes import SLOW_S, Tracer, listening, until
from wire import encoded

from kvtrail.tracer.ingest import weight
from kvtrail.tracer.serve import limits
from kvtrail.tracer.serve.limits import Limits, grpc_connections
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.receivers import CALLS_AT_ONCE
from kvtrail.tracer.serve.receive.turns import Turns

PAYLOAD = encoded(history("L 749 c0 h256 -> 256\nA 256"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
MAX_MIB = 512


SHORT = {
    "200 connections with 7 MiB, no token, gRPC",
    "256 MiB as 1 MiB of gzip, gRPC",
    "2.7 million empty objects, JSON",
}
"""Attacks that `make test` tries: one on each of the limits, of connections, of unpacked bytes and of JSON."""


def some_long(names: Iterable[str], short: set[str]) -> list[Any]:
    """The names, all but the short ones for `make test-all`."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture
def guarded(tmp_path: Path) -> Callable[..., Tracer]:
    """Starts a sidecar that wants a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    return lambda *more: listening(tmp_path, "--token-file", str(tokens), *more)


@pytest.mark.parametrize("name", some_long(ATTACKS, SHORT))
def test_memory_is_bounded_and_given_back(guarded: Callable[..., Tracer], name: str) -> None:
    tracer = guarded()
    try:
        cost = attacked(tracer, ATTACKS[name], times=2)
        assert not {"OK", "200"} & set(cost.answers)
        assert cost.posts
        assert cost.most_mib < MAX_MIB
        until(lambda: cost.resident_mib() < cost.before_mib + 64, why=lambda: cost)
    finally:
        tracer.end()


def test_a_message_over_grpc_is_refused_before_it_is_read(api: Tracer) -> None:
    """One that claims to have 2 GiB, but only a kilobyte comes: the answer does not wait for the rest."""
    with socket.create_connection(("127.0.0.1", api.grpc_port), timeout=SLOW_S) as connection:
        path = EXPORT.encode()
        head = b"\x83\x86" + b"\x04" + bytes([len(path)]) + path + b"\x0f\x10\x10application/grpc"
        head += b"\x00\x02te\x08trailers" + b"\x01\x09localhost"
        message = struct.pack(">BI", 0, 2**31 - 1) + bytes(1024)
        connection.sendall(PREFACE + frame(1, 4, head) + frame(0, 0, message))
        said = b""
        while b"larger%20than" not in said and b"larger than" not in said:
            part_said = connection.recv(65_536)
            assert part_said, said
            said += part_said
    with grpc.insecure_channel(f"127.0.0.1:{api.grpc_port}") as channel:
        assert channel.unary_unary(EXPORT)(PAYLOAD, timeout=SLOW_S) == b""


def frame(kind: int, flags: int, data: bytes, *, stream: int = 1) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data


@pytest.mark.parametrize(
    "compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate]
)
def test_over_grpc_compressed_messages_are_taken(api: Tracer, compression: grpc.Compression) -> None:
    name = f"{compression.name}-0123abcd"
    payload = encoded(history("L 749 c0 h256 -> 256\nA 256", request=name, recorder=name, engine=name))
    with grpc.insecure_channel(f"127.0.0.1:{api.grpc_port}", compression=compression) as channel:
        assert channel.unary_unary(EXPORT)(payload, timeout=SLOW_S) == b""
    assert name in api.read("/api/spans?limit=1000")


def test_malformed_spans_leave_no_calls_behind(api: Tracer) -> None:
    """More calls on one connection than the server takes at a time: one that is kept in memory counts as one that is open."""
    body = request_of(part(2, part(5, b"kv.lookup")))
    with grpc.insecure_channel(f"127.0.0.1:{api.grpc_port}") as channel:
        export = channel.unary_unary(EXPORT)
        for _ in range(3 * CALLS_AT_ONCE):
            assert export(body, timeout=SLOW_S) == b""


IDLE = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for number in range(1500):
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
        if number % 2:
            held[-1].sendall(bytes.fromhex(sys.argv[2]))
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""


def test_idle_connections_over_grpc_take_nothing_from_http(api: Tracer) -> None:
    """And who comes over gRPC is still taken: the longest idle makes room."""
    idle = subprocess.Popen(
        [sys.executable, "-c", IDLE, str(api.grpc_port), PREFACE.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert idle.stdout is not None
        assert int(idle.stdout.readline()) > 1000
        assert httpx.get(f"{api.url}/healthz", timeout=SLOW_S).status_code == 200
        api.post(PAYLOAD)
        with grpc.insecure_channel(f"127.0.0.1:{api.grpc_port}") as channel:
            assert channel.unary_unary(EXPORT)(PAYLOAD, timeout=SLOW_S, wait_for_ready=True) == b""
    finally:
        idle.kill()
        idle.wait()


def test_descriptors_are_left_for_http() -> None:
    bounds = Limits(max_connections=500)
    few = grpc_connections(bounds, 1024)
    assert few * limits.BEHIND_GATE + limits.OWN_DESCRIPTORS + bounds.max_connections <= 1024
    assert grpc_connections(bounds, 65_536) == 500
    assert grpc_connections(bounds, 256) == 1


def test_calls_that_do_not_come_make_room(start_tracer: Callable[..., Tracer]) -> None:
    """More of them than may wait, each with the beginning of a message."""
    tracer = start_tracer(limits={"receive_seconds": 600})
    head = b"\x83\x86" + b"\x04" + bytes([len(EXPORT)]) + EXPORT.encode() + b"\x0f\x10\x10application/grpc"
    head += b"\x00\x02te\x08trailers" + b"\x01\x09localhost"
    began = frame(1, 4, head) + frame(0, 0, struct.pack(">BI", 0, 1000) + b"\x0a")
    with ExitStack() as stack:
        for _ in range(100):
            connection = socket.create_connection(("127.0.0.1", tracer.grpc_port), timeout=SLOW_S)
            stack.enter_context(connection).sendall(PREFACE + began)
        with grpc.insecure_channel(f"127.0.0.1:{tracer.grpc_port}") as channel:
            assert channel.unary_unary(EXPORT)(PAYLOAD, timeout=SLOW_S) == b""
        until(lambda: 'kvtrail_rejected_total{reason="slow",transport="grpc"} 0.0' not in tracer.read("/metrics"))


def test_a_body_with_too_many_parts_is_refused_for_good(api: Tracer) -> None:
    headers = {**BODY, "content-encoding": "gzip"}
    refusal = httpx.post(
        f"{api.url}/v1/traces", content=gzip.compress(empty_attributes()), headers=headers, timeout=SLOW_S
    )
    assert refusal.status_code == 413
    assert b"too many spans, attributes" in refusal.content


@pytest.mark.parametrize("name", some_long(HEAVIEST, {"a list of numbers"}))
def test_the_heaviest_that_is_taken_has_its_room(start_tracer: Callable[..., Tracer], name: str) -> None:
    """Eight senders of it, at a time."""
    tracer = start_tracer()
    heaviest = HEAVIEST[name]()
    assert weight.MOST * 0.9 < weight.of(heaviest) <= weight.MOST or len(heaviest) > 0.9 * Limits().request_bytes
    cost = attacked(tracer, Attack(8, over_http(lambda: heaviest)), times=1)
    assert {*cost.answers} == {"200"}
    assert cost.most_mib < MAX_MIB


def test_heavy_requests_are_taken_one_at_a_time() -> None:
    met: list[bytes] = []
    both = threading.Barrier(2)

    def ingest(payload: bytes, *, transport: str) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)  # for one that must not come
            met.append(payload)

    turns = Turns(cast(Pipeline, SimpleNamespace(ingest=ingest)), most_bytes=2**23)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: turns.take_heavy(PAYLOAD, "", transport="http"), range(2)))
    assert not met


def test_what_recorders_send_weighs_little() -> None:
    assert weight.of(PAYLOAD * 256) < weight.MOST // 8
    numbers = request_of(part(2, part(9, part(1, b"x") + part(2, part(5, b"\x0a\x02\x18\x05" * 400_000)))))
    assert 700_000 < weight.of(numbers) < weight.MOST


@pytest.mark.parametrize(
    "spans",
    [
        b"\x12\x00" * 70_000,
        part(2, b"\x4a\x00" * 300_000),
        part(2, part(9, part(2, part(5, b"\x0a\x00" * 600_000)))),
        part(2, part(9, part(2, part(6, b"\x0a\x00" * 300_000)))),
        part(2, part(11, part(3, b"\x0a\x00") * 300_000)),
        part(2, b"\x12\x00" + b"\x07" * 2_200_000),  # damage weighs as much as it could
        b"\x12" + b"\xff" * 2_200_000,
        part(2, b"\x78\x00" * 1_100_000),
        part(2, b"\x7d\x00\x00\x00\x00" * 1_100_000),
        part(2, b"\xfa\x01\x00" * 1_100_000),
    ],
    ids=[
        "spans",
        "attributes",
        "items",
        "pairs",
        "events",
        "damage",
        "a number without an end",
        "unknown numbers",
        "fixed numbers",
        "unknown texts",
    ],
)
def test_what_is_too_heavy_is_refused(spans: bytes) -> None:
    with pytest.raises(weight.TooMuch):
        weight.of(request_of(spans))
