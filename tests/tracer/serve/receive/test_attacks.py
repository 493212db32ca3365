"""What hostile senders do to a real sidecar: its memory stays bounded and is given back, and innocent posts are taken."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    empty_resources,
    empty_spans,
    long_list,
    over_http,
    part,
    request_of,
)
from history import history
from processes import SLOW_S, Tracer, listening, until
from wire import encoded

from kvtrail.tracer.ingest.protobuf import spans
from kvtrail.tracer.serve.limits import Limits
from kvtrail.tracer.serve.receive.grpc_receiver import CALLS_AT_ONCE
from kvtrail.tracer.serve.receive.intake import HEAVY_BYTES, PART_BYTES, Intake
from kvtrail.tracer.serve.receive.pipeline import Pipeline

PAYLOAD = encoded(history("L 749 c0 h256 -> 256\nA 256"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
MAX_MIB = 512


SHORT = {
    "200 connections with 7 MiB, no token, gRPC",
    "256 MiB as a quarter MiB of gzip, gRPC",
    "the same attributes as 4 kB of gzip, HTTP",
    "1.4 million empty objects, JSON",
}
"""Attacks that `make test` tries: on the limits of connections, of unpacked bytes, of attributes and of JSON."""


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


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (empty_attributes, b"more than 1000 attributes"),
        (empty_spans, b"more than 65536 spans"),
        (empty_resources, b"more than 65536 spans"),
        (long_list, b"an attribute of more than 1048576 bytes"),
    ],
)
def test_a_body_with_too_many_parts_is_refused_for_good(api: Tracer, body: Callable[[], bytes], why: bytes) -> None:
    headers = {**BODY, "content-encoding": "gzip"}
    refusal = httpx.post(f"{api.url}/v1/traces", content=gzip.compress(body()), headers=headers, timeout=SLOW_S)
    assert refusal.status_code == 400
    assert why in refusal.content


@pytest.mark.parametrize("name", some_long(HEAVIEST, {"lists of numbers"}))
def test_the_heaviest_that_is_taken_has_its_room(start_tracer: Callable[..., Tracer], name: str) -> None:
    """Eight senders of it, at a time."""
    tracer = start_tracer()
    heaviest = HEAVIEST[name]()
    assert len(heaviest) > 0.6 * Limits().request_bytes
    cost = attacked(tracer, Attack(8, over_http(lambda: heaviest)), times=1)
    assert {*cost.answers} == {"200"}
    assert cost.most_mib < MAX_MIB


def ingesting(ingest: Callable[..., None]) -> Intake:
    return Intake(cast(Pipeline, SimpleNamespace(ingest=ingest)), most_bytes=2**23)


def test_heavy_requests_are_taken_one_at_a_time() -> None:
    met: list[bytes] = []
    both = threading.Barrier(2)

    def ingest(payload: bytes, *, transport: str) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.1)  # for one that must not come
            met.append(payload)

    intake = ingesting(ingest)
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(lambda _: intake.take(PAYLOAD * (HEAVY_BYTES // len(PAYLOAD) + 1), "", transport="http"), range(2))
        )
    assert not met


def test_a_long_request_is_stored_in_parts_with_all_of_its_spans() -> None:
    """And one span that is longer than a part."""
    came: list[bytes] = []
    intake = ingesting(lambda payload, *, transport: came.append(payload))
    long = request_of(part(2, part(5, b"kv.lookup") + part(9, part(1, b"x") + part(2, part(1, b"x" * PART_BYTES)))))
    intake.take(PAYLOAD * (2**20 // len(PAYLOAD)) + long, "", transport="http")
    assert len(came) == 3
    assert all(len(each) < 2 * PART_BYTES for each in came)
    sent, stored = spans(PAYLOAD), [span for each in came for span in spans(each)]
    assert len(stored) == len(sent) * (2**20 // len(PAYLOAD)) + 1
    assert (stored[0].resource, stored[0].scope, stored[0].span_id) == (
        sent[0].resource,
        sent[0].scope,
        sent[0].span_id,
    )
