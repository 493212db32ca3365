"""Sending, to real receivers over gRPC and HTTP: what they refuse, when they are away, and when they are slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate

import grpc
import pytest
from backends import Backend, Refusal, over_grpc, over_http
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from processes import free_port, until
from prometheus_client import CollectorRegistry
from test_forward_pieces import foreign, odd_span

from kvtrail.tracer.serve.forward import sender as senders
from kvtrail.tracer.serve.forward.figures import Dropped
from kvtrail.tracer.serve.forward.pieces import OVERHEAD_BYTES, Cutter, Piece, joined
from kvtrail.tracer.serve.forward.sender import Sender
from kvtrail.tracer.serve.forward.target import GRPC, HTTP, Headers, Target
from kvtrail.tracer.serve.forward.transport import transport
from kvtrail.tracer.serve.metrics.metrics import Metrics

Serve = Callable[..., AbstractContextManager[Backend]]
BOTH = pytest.mark.parametrize(("protocol", "serving"), [(GRPC, over_grpc), (HTTP, over_http)])


class Sending:
    """A sender, and what it counts."""

    def __init__(self, endpoint: str, protocol: str, *, most_bytes: int = 1 << 20, compression: str = "none") -> None:
        metrics = Metrics()
        self._registry: CollectorRegistry = metrics.registry
        target = Target(endpoint, protocol=protocol, compression=compression)
        self.sender = Sender(transport(target, Headers(None)), metrics.forwarding, most_bytes=most_bytes)
        self._numbers = iter(range(1, 10**6))

    def put(self, count: int = 1) -> None:
        self.sender.put([a_span(next(self._numbers)) for _ in range(count)])

    def value(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"kvtrail_forward_{name}", labels) or 0.0

    def dropped(self) -> dict[str, float]:
        return {why: value for why in Dropped if (value := self.value("spans_dropped_total", reason=why))}


def a_span(number: int) -> Piece:
    ((origin, spans),) = Cutter().cut(foreign(odd_span()))
    span = Span.FromString(spans[0])
    span.span_id = number.to_bytes(8, "big")
    return Piece(origin, span.SerializeToString())


def numbers(backend: Backend) -> list[int]:
    """The numbers of the spans that came."""
    return [int.from_bytes(span.span_id, "big") for span in backend.spans()]


@contextmanager
def sending(endpoint: str, protocol: str, *, drain_s: float = 60, **settings: int | str) -> Iterator[Sending]:
    made = Sending(endpoint, protocol, **settings)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.sender.close(drain_s=drain_s)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(senders, "LONGEST_PAUSE_S", 0.05)


@BOTH
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_is_put_in_arrives(protocol: str, serving: Serve, compression: str) -> None:
    with serving() as backend:
        with sending(backend.endpoint, protocol, compression=compression) as made:
            made.put(5)
            until(lambda: made.value("spans_sent_total") == 5)
            until(lambda: made.value("queue_spans") == made.sender.queued == 0)
        assert numbers(backend) == [1, 2, 3, 4, 5]
        assert (made.value("spans_sent_total"), made.dropped()) == (5, {})
        assert (made.sender.trouble, made.value("queue_bytes")) == (None, 0)
        (headers,) = backend.headers
        if protocol == HTTP:  # gRPC does not show it
            assert headers.get("content-encoding", "none") == compression


@BOTH
def test_large_batches_become_several_requests(protocol: str, serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of spans and by their size; a span that is larger than that goes alone."""
    monkeypatch.setattr(senders, "MAX_SPANS", 10)
    monkeypatch.setattr(senders, "MAX_BYTES", 5 * len(a_span(1).span))
    with serving() as backend:
        with sending(backend.endpoint, protocol) as made:
            made.put(23)
        counts = [sum(len(s.spans) for r in q.resource_spans for s in r.scope_spans) for q in backend.requests()]
        assert counts == [5, 5, 5, 5, 3]
        assert numbers(backend) == list(range(1, 24))
        monkeypatch.setattr(senders, "MAX_BYTES", 1)
        with sending(backend.endpoint, protocol) as made:
            made.put(2)
        assert len(backend.payloads) == len(counts) + 2


AGAIN = [
    (GRPC, over_grpc, Refusal(grpc.StatusCode.UNAVAILABLE)),
    (GRPC, over_grpc, Refusal(grpc.StatusCode.DEADLINE_EXCEEDED)),
    (GRPC, over_grpc, Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, after=0.01)),
    (HTTP, over_http, Refusal(429)),
    (HTTP, over_http, Refusal(502)),
    (HTTP, over_http, Refusal(503, after="0")),
    (HTTP, over_http, Refusal(504, after="soon")),
]
NEVER = [
    (GRPC, over_grpc, Refusal(grpc.StatusCode.INVALID_ARGUMENT)),
    (GRPC, over_grpc, Refusal(grpc.StatusCode.UNAUTHENTICATED)),
    (GRPC, over_grpc, Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)),
    (HTTP, over_http, Refusal(400)),
    (HTTP, over_http, Refusal(401)),
    (HTTP, over_http, Refusal(500)),
    (HTTP, over_http, Refusal(301)),
]


@pytest.mark.parametrize(("protocol", "serving", "refusal"), AGAIN)
def test_it_tries_again_where_the_protocol_allows_it(protocol: str, serving: Serve, refusal: Refusal) -> None:
    with serving() as backend:
        backend.refusals.extend([refusal] * 3)
        with sending(backend.endpoint, protocol) as made:
            made.put(2)
        assert numbers(backend) == [1, 2]
        assert (made.value("failures_total"), made.dropped()) == (3, {})


@pytest.mark.parametrize(("protocol", "serving", "refusal"), NEVER)
def test_it_does_not_try_again_what_is_refused_for_good(protocol: str, serving: Serve, refusal: Refusal) -> None:
    """What comes after it is sent."""
    with serving() as backend:
        backend.refusals.append(refusal)
        with sending(backend.endpoint, protocol) as made:
            made.put(2)
            until(lambda: made.dropped() == {"refused": 2})
            assert made.sender.trouble is not None
            made.put(1)
        assert numbers(backend) == [3]
        assert made.sender.trouble is None


@pytest.mark.parametrize(
    ("protocol", "serving", "refusal"),
    [
        (GRPC, over_grpc, lambda: Refusal(grpc.StatusCode.UNAVAILABLE, after=1.5)),
        (GRPC, over_grpc, lambda: Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, after=1.5)),
        (HTTP, over_http, lambda: Refusal(503, after="1.5")),
        (HTTP, over_http, lambda: Refusal(429, after=formatdate(time.time() + 36_000, usegmt=True))),
    ],
    ids=["UNAVAILABLE", "RESOURCE_EXHAUSTED", "503", "429"],
)
def test_it_tries_again_at_the_requested_time(
    protocol: str, serving: Serve, refusal: Callable[[], Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after its own short pause."""
    waits: list[float] = []

    def wait(self: Sender, seconds: float) -> bool:
        waits.append(seconds)
        return True

    monkeypatch.setattr(Sender, "_wait", wait)
    monkeypatch.setattr(senders, "GIVE_UP_S", 100_000.0)
    with serving() as backend:
        backend.refusals.append(refusal())
        with sending(backend.endpoint, protocol) as made:
            made.put()
    (waited,) = waits
    assert waited == 1.5 or 30_000 < waited <= 36_000
    assert numbers(backend) == [1]


def test_pauses_become_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(self: Sender, seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 20

    monkeypatch.setattr(senders, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(senders, "LONGEST_PAUSE_S", 8.0)
    monkeypatch.setattr(Sender, "_wait", wait)
    with sending(f"http://127.0.0.1:{free_port()}", HTTP, drain_s=1) as made:
        made.put()
        until(lambda: len(waits) >= 20)
    for number, waited in enumerate(waits[:20]):
        pause_s = min(2.0**number, 8.0)
        assert pause_s / 2 <= waited <= pause_s * 1.5
    assert len(set(waits)) > 10  # many sidecars do not come back at the same moment


@BOTH
def test_a_receiver_that_is_away_gets_all_when_it_comes(protocol: str, serving: Serve) -> None:
    port = free_port()
    with sending(f"http://127.0.0.1:{port}", protocol) as made:
        made.put(3)
        until(lambda: made.value("failures_total") > 2)
        assert made.sender.queued == made.value("queue_spans") == 3
        with serving(port) as first:
            until(lambda: len(numbers(first)) == 3)
        made.put(2)
        until(lambda: made.sender.trouble is not None)
        with serving(port) as second:
            until(lambda: len(numbers(second)) == 2)
    assert (numbers(first), numbers(second), made.dropped()) == ([1, 2, 3], [4, 5], {})


@BOTH
def test_a_receiver_that_hangs_blocks_nothing_and_the_oldest_is_dropped(protocol: str, serving: Serve) -> None:
    size = len(a_span(1).span) + OVERHEAD_BYTES
    with serving() as backend:
        backend.open.clear()
        with sending(backend.endpoint, protocol, most_bytes=10 * size) as made:
            made.put()
            until(lambda: backend.headers)  # the first is on its way
            made.put(30)
            assert made.dropped() == {"queue_full": 20}
            assert made.value("queue_bytes") <= 10 * size
            backend.open.set()
        assert numbers(backend) == [1, *range(22, 32)]


@BOTH
def test_what_is_queued_at_the_end_is_sent_or_counted(protocol: str, serving: Serve) -> None:
    with serving() as backend:
        backend.open.clear()
        with sending(backend.endpoint, protocol, drain_s=0.2) as made:
            made.put(3)
            until(lambda: backend.headers)
            made.put(4)
        assert made.dropped() == {"stopped": 7}
        assert made.value("queue_spans") == 0
    with sending(f"http://127.0.0.1:{free_port()}", protocol, drain_s=0.2) as made:
        made.put(3)
    assert made.dropped() == {"stopped": 3}


def test_a_request_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the receiver may take may lie behind it."""
    monkeypatch.setattr(senders, "GIVE_UP_S", 0.0)
    with over_http() as backend:
        backend.refusals.append(Refusal(503))
        with sending(backend.endpoint, HTTP) as made:
            made.put(2)
            until(lambda: made.dropped() == {"given_up": 2})
            made.put()
        assert numbers(backend) == [3]


def test_an_error_in_kvtrail_itself_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_once(pieces: list[Piece]) -> bytes:
        monkeypatch.setattr(senders, "joined", joined)
        raise RuntimeError("no")

    with over_http() as backend:
        monkeypatch.setattr(senders, "joined", fails_once)
        with sending(backend.endpoint, HTTP) as made:
            made.put(2)
            until(lambda: made.dropped() == {"refused": 2})
            made.put()
        assert numbers(backend) == [3]


@BOTH
def test_spans_that_the_receiver_rejects_are_counted(protocol: str, serving: Serve) -> None:
    with serving() as backend:
        backend.rejects = 2
        with sending(backend.endpoint, protocol) as made:
            made.put(5)
        assert (made.value("spans_sent_total"), made.dropped()) == (3, {"rejected": 2})


def test_trouble_is_reported_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kvtrail")
    with over_http() as backend:
        backend.refusals.extend([Refusal(503, text="disk full")] * 20)
        with sending(backend.endpoint, HTTP) as made:
            made.put()
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [
        "forwarding: the receiver does not take spans, trying again: 503 Service Unavailable: disk full",
        "forwarding: the receiver takes spans again",
    ]
