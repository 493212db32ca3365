"""Hostile senders of OTLP, and what they cost a sidecar: its memory, and the wait of an innocent post."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import grpc
import httpx
from history import history
from processes import SLOW_S, Tracer
from wire import encoded

TOKEN = "good"
BEARER = {"authorization": f"Bearer {TOKEN}"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
BODY = {"content-type": "application/x-protobuf"}
FULL = 2**22 - 1000
"""Bytes, just under what is taken over HTTP."""
MANY = FULL // 2
"""Empty parts that make as much."""
FULL_GRPC = 2**20 - 1000
"""Just under what is taken over gRPC."""


def part(number: int, data: bytes) -> bytes:
    """A field of a message that holds bytes, as it lies on the wire."""
    length, size = len(data), b""
    while length > 0x7F:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + data


def request_of(spans: bytes, *, scope: bytes = b"kvtrail") -> bytes:
    """A request with these spans, which are encoded with the head of their field."""
    return part(1, part(2, part(1, part(1, scope)) + spans))


@cache
def empty_spans() -> bytes:
    return request_of(b"\x12\x00" * MANY)


@cache
def empty_attributes(size: int = FULL) -> bytes:
    """Of one span."""
    return request_of(part(2, part(5, b"kv.lookup") + b"\x4a\x00" * (size // 2)))


@cache
def empty_events() -> bytes:
    """A thousand of each span, which is somebody else's."""
    span = part(2, b"\x5a\x00" * 1000)
    return request_of(span * (FULL // len(span)), scope=b"other")


@cache
def empty_resources() -> bytes:
    return b"\x0a\x00" * MANY


@cache
def long_list() -> bytes:
    """An attribute that is a list of nothing."""
    return request_of(part(2, part(5, b"kv.lookup") + part(9, part(1, b"x") + part(2, part(5, b"\x0a\x00" * MANY)))))


@cache
def bomb() -> bytes:
    """A few kilobytes that become 4 MiB of empty attributes."""
    return gzip.compress(empty_attributes())


@cache
def large_bomb() -> bytes:
    """A quarter of a megabyte that becomes a quarter of a gigabyte."""
    return gzip.compress(bytes(2**28))


@cache
def many_objects() -> bytes:
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b",".join([b"{}"] * (FULL // 3)) + b"]}]}]}"


Sender = Callable[[Tracer], str]
"""Sends once, and says what the answer was."""


def over_http(
    body: Callable[[], bytes], headers: Mapping[str, str] | None = None, *, token: bool = True
) -> Callable[[Tracer], Sender]:
    """One who posts a body again and again."""

    def sender(tracer: Tracer) -> Sender:
        content = body()

        def send(tracer: Tracer) -> str:
            said = {**BODY, **(BEARER if token else {}), **(headers or {})}
            return str(httpx.post(f"{tracer.url}/v1/traces", content=content, headers=said, timeout=None).status_code)

        return send

    return sender


def over_grpc(body: Callable[[], bytes], *, token: bool = True) -> Callable[[Tracer], Sender]:
    """One who exports a message again and again, on a connection of his own."""

    def sender(tracer: Tracer) -> Sender:
        content = body()
        channel = grpc.insecure_channel(
            f"127.0.0.1:{tracer.grpc_port}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )
        export = channel.unary_unary(EXPORT)

        def send(tracer: Tracer) -> str:
            try:
                export(content, metadata=tuple(BEARER.items()) if token else ())
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        return send

    return sender


@dataclass(frozen=True)
class Attack:
    """Several senders at a time."""

    senders: int
    sender: Callable[[Tracer], Sender]


@cache
def _zeros(mib: int) -> bytes:
    return bytes(mib * 2**20)


@cache
def _quotes() -> bytes:
    """No JSON, and what is wrong with it is said with all of it at hand."""
    return b'"' * FULL


GZIP, JSON = {"content-encoding": "gzip"}, {"content-type": "application/json"}
ATTACKS: Mapping[str, Attack] = {
    "200 connections with 7 MiB, no token, gRPC": Attack(200, over_grpc(lambda: _zeros(7), token=False)),
    "200 connections with 1 MiB, no token, gRPC": Attack(200, over_grpc(lambda: bytes(FULL_GRPC), token=False)),
    "messages of 64 MiB, gRPC": Attack(2, over_grpc(lambda: _zeros(64))),
    "half a million empty attributes, gRPC": Attack(8, over_grpc(lambda: empty_attributes(FULL_GRPC))),
    "256 MiB as a quarter MiB of gzip, gRPC": Attack(8, over_grpc(large_bomb)),
    "200 connections with 4 MiB, no token, HTTP": Attack(200, over_http(lambda: _zeros(4), token=False)),
    "2 million empty attributes, HTTP": Attack(8, over_http(empty_attributes)),
    "2 million empty spans, HTTP": Attack(8, over_http(empty_spans)),
    "2 million empty events, HTTP": Attack(8, over_http(empty_events)),
    "2 million empty resources, HTTP": Attack(8, over_http(empty_resources)),
    "a list of 2 million nothings, HTTP": Attack(8, over_http(long_list)),
    "the same attributes as 4 kB of gzip, HTTP": Attack(8, over_http(bomb, GZIP)),
    "4 MB of quotes, JSON": Attack(8, over_http(_quotes, JSON)),
    "1.4 million empty objects, JSON": Attack(8, over_http(many_objects, JSON)),
}


def _filled(span: bytes, *, scope: bytes = b"kvtrail") -> bytes:
    """As many of a span as a request may have."""
    return request_of(span * min(FULL // len(span), 65_000), scope=scope)


def _span(attributes: bytes = b"") -> bytes:
    ids = part(1, bytes(15) + b"t") + part(2, b"the span")
    return part(2, ids + part(5, b"kv.lookup") + attributes)


def _named(key: bytes, value: bytes) -> bytes:
    return part(9, part(1, key) + part(2, value))


HEAVIEST: Mapping[str, Callable[[], bytes]] = {
    "lists of numbers": lambda: _filled(_span(_named(b"x", part(5, part(1, b"\x18\x07") * 255_000)))),
    "attributes": lambda: _filled(_span(_named(b"x", b"\x18\x07") * 1000)),
    "spans of ours that lack everything": lambda: _filled(_span(_named(b"x", b"\x18\x07"))),
    "spans of others": lambda: _filled(_span(), scope=b"other"),
}
"""Requests that are as heavy as those may be that are taken, and seem harmless."""


@dataclass
class Cost:
    """What an attack costs.

    Attributes:
        before_mib: resident memory before it.
        most_mib: and at most.
        longest_wait_s: of an innocent post, until it was acknowledged.
        posts: how many of these there were.
        answers: what the attackers were answered.
    """

    process: int
    before_mib: int = 0
    most_mib: int = 0
    longest_wait_s: float = 0
    posts: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def resident_mib(self, name: str = "VmRSS") -> int:
        """Now; as `VmHWM` the most since the process began."""
        text = Path(f"/proc/{self.process}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", text)[1]) // 1024  # type: ignore[index]


def attacked(tracer: Tracer, attack: Attack, *, seconds: float | None = None, times: int | None = None) -> Cost:
    """Attack a tracer for a time, or a number of times by each sender, with innocent posts in between."""
    cost = Cost(tracer.process.pid)
    cost.before_mib = cost.resident_mib()
    over, counting = threading.Event(), threading.Lock()

    def work() -> None:
        send = attack.sender(tracer)
        sent = 0
        while not over.is_set() and sent != times:
            try:
                answer = send(tracer)
            except httpx.HTTPError as error:
                answer = type(error).__name__
            sent += 1
            with counting:
                cost.answers[answer] += 1

    attack.sender(tracer)  # what it sends is made once, and not while it is timed
    threads = [threading.Thread(target=work, daemon=True) for _ in range(attack.senders)]
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    with httpx.Client(headers={**BODY, **BEARER}, timeout=SLOW_S) as innocent:
        under_attack = True  # at first, however soon it is over: one post at least is timed
        while under_attack:
            if seconds is not None and time.monotonic() - began_s > seconds:
                over.set()
            body = encoded(history("L 749 c0 h256 -> 256\nA 256"), {"n": str(cost.posts)})
            sent_s = time.monotonic()
            innocent.post(f"{tracer.url}/v1/traces", content=body).raise_for_status()
            cost.longest_wait_s = max(cost.longest_wait_s, time.monotonic() - sent_s)
            cost.posts += 1
            under_attack = any(thread.is_alive() for thread in threads)
            over.wait(0.1)
    cost.most_mib = cost.resident_mib("VmHWM")
    return cost
