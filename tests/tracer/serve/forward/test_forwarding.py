"""The real sidecar, which forwards to real receivers: with TLS, headers and compression, and through restarts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
import trustme
from backends import Backend, Certificates, Refusal, over_grpc, over_http
from history import history
from processes import SLOW_S, Tracer, free_port, listening, until
from test_forward_pieces import foreign, odd_span
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.ingest.protobuf import attributes
from kvtrail.tracer.serve.forward.target import GRPC, HTTP

Serve = Callable[..., AbstractContextManager[Backend]]
BOTH = pytest.mark.parametrize(("protocol", "serving"), [(GRPC, over_grpc), (HTTP, over_http)])
WELL = "start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nend"
DRIFT = "start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nend"


def hear(tracer: Tracer, text: str, request: str) -> None:
    tracer.post(encoded(history(text, request=request, recorder=f"recorder of {request}")))


def stop(tracer: Tracer) -> None:
    tracer.process.send_signal(signal.SIGTERM)
    assert tracer.process.wait(SLOW_S) == 0


@pytest.fixture
def ending() -> Iterator[list[Tracer]]:
    """Tracers to be ended after the test."""
    tracers: list[Tracer] = []
    yield tracers
    for tracer in tracers:
        tracer.end()


@BOTH
def test_what_matters_arrives(tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve) -> None:
    with serving() as backend:
        to = ("--forward-to", backend.endpoint, "--forward-protocol", protocol, "--forward-sample", "0")
        tracer = listening(tmp_path, *to)
        ending.append(tracer)
        hear(tracer, WELL, "well-0123abcd")
        hear(tracer, DRIFT, "drift-0123abcd")
        tracer.post(foreign(odd_span()))
        until(lambda: len(backend.spans()) == 10, why=lambda: backend.names())
        roots = [span for span in backend.spans() if span.name == "kv.request"]
        (root,), (finding,) = roots, backend.spans("kv.finding")
        assert [event.name for event in root.events] == ["kv.finding"]
        assert (finding.trace_id, finding.parent_span_id) == (root.trace_id, root.span_id)
        assert {link.span_id for link in finding.links} == {span.span_id for span in backend.spans("kv.lookup")}
        assert {attributes(s.attributes).get(semconv.REQUEST_ID.key) for s in backend.spans("kv.")} == {
            "drift-0123abcd"
        }
        assert any(odd_span() in payload for payload in backend.payloads)
        forward = tracer.get("/api/health")["forward"]
        assert forward == {"to": backend.endpoint, "status": "ok", "queued": 0, "held": 0}
        metrics = tracer.read("/metrics")
        assert "kvtrail_forward_spans_sent_total 10.0" in metrics
        assert "kvtrail_forward_queue_spans 0.0" in metrics
        assert 'kvtrail_forward_requests_total{reason="left_out"} 1.0' in metrics
        stop(tracer)
        assert "HTTP Request" not in tracer.log.read_text()


def test_nothing_is_forwarded_unless_it_is_asked_for(api: Tracer) -> None:
    assert api.get("/api/health")["forward"] is None


@pytest.mark.long
@BOTH
def test_sigterm_sends_what_is_there(tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve) -> None:
    with serving() as backend:
        tracer = listening(tmp_path, "--forward-to", backend.endpoint, "--forward-protocol", protocol)
        ending.append(tracer)
        hear(tracer, WELL, "well-0123abcd")
        stop(tracer)
        assert backend.names() == ["kv.request.start", "kv.lookup", "kv.alloc", "kv.schedule", "kv.request"]
        assert "Traceback" not in tracer.log.read_text()


@pytest.mark.long
@BOTH
def test_an_unreachable_receiver_is_reported_and_gets_everything_later(
    tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve
) -> None:
    """Whoever sends to the sidecar does not notice; what is ready and healthy does not depend on it."""
    port = free_port()
    tracer = listening(tmp_path, "--forward-to", f"http://127.0.0.1:{port}", "--forward-protocol", protocol)
    ending.append(tracer)
    for number in range(20):
        hear(tracer, WELL, f"r-{number}-0123abcd")
    until(lambda: tracer.get("/api/health")["forward"]["status"] != "ok")
    health = tracer.get("/api/health")
    assert health["status"] == tracer.get("/readyz")["status"] == "ok"
    assert health["forward"]["queued"] >= 80
    assert tracer.log.read_text().count("does not take spans") == 1
    with serving(port) as backend:
        until(lambda: len([span for span in backend.spans() if span.name == "kv.request"]) == 20)
        until(lambda: tracer.get("/api/health")["forward"]["status"] == "ok")
        stop(tracer)
    assert "takes spans again" in tracer.log.read_text()


@pytest.mark.long
def test_a_receiver_that_stays_away_does_not_keep_the_sidecar(tmp_path: Path, ending: list[Tracer]) -> None:
    tracer = listening(tmp_path, "--forward-to", f"http://127.0.0.1:{free_port()}")
    ending.append(tracer)
    hear(tracer, WELL, "well-0123abcd")
    stop(tracer)
    assert "spans are dropped (stopped)" in tracer.log.read_text()


@pytest.mark.long
@BOTH
def test_an_overloaded_receiver_gets_everything_once(
    tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve
) -> None:
    code: grpc.StatusCode | int = grpc.StatusCode.RESOURCE_EXHAUSTED if protocol == GRPC else 429
    with serving() as backend:
        backend.refusals.extend([Refusal(code, after="0.1")] * 3)
        tracer = listening(tmp_path, "--forward-to", backend.endpoint, "--forward-protocol", protocol)
        ending.append(tracer)
        for number in range(20):
            hear(tracer, WELL, f"r-{number}-0123abcd")
        until(lambda: len(backend.names()) == 100, why=lambda: len(backend.names()))
        assert len({(span.trace_id, span.span_id) for span in backend.spans("kv.request")}) == 40
        stop(tracer)


@BOTH
def test_mutual_tls_headers_and_gzip(tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve) -> None:
    authority = trustme.CA()
    paths = {}
    for name in ("127.0.0.1", "sidecar.test"):
        issued, paths[name] = authority.issue_cert(name), (tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(paths[name][0])
        issued.private_key_pem.write_to_path(paths[name][1])
    authority.cert_pem.write_to_path(ca := tmp_path / "ca.crt")
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer of-the-vendor\nx-scope-orgid: kv\n")
    with serving(tls=Certificates(*paths["127.0.0.1"], client_ca=ca)) as backend:
        certificate, key = paths["sidecar.test"]
        to = ("--forward-to", backend.endpoint, "--forward-protocol", protocol, "--forward-compression", "gzip")
        files = ("--forward-ca", str(ca), "--forward-cert", str(certificate), "--forward-key", str(key))
        tracer = listening(tmp_path, *to, *files, "--forward-headers-file", str(headers))
        ending.append(tracer)
        hear(tracer, DRIFT, "drift-0123abcd")
        until(lambda: len(backend.names()) == 9, why=tracer.log.read_text)
        assert backend.headers[0]["authorization"] == "Bearer of-the-vendor"
        assert backend.headers[0]["x-scope-orgid"] == "kv"
        assert set(backend.paths) == (set() if protocol == GRPC else {"/v1/traces"})
        stop(tracer)
    assert "of-the-vendor" not in tracer.log.read_text()


@pytest.mark.long
@BOTH
def test_a_receiver_with_a_strangers_certificate_gets_nothing(
    tmp_path: Path, ending: list[Tracer], protocol: str, serving: Serve
) -> None:
    issued, pair = trustme.CA().issue_cert("127.0.0.1"), (tmp_path / "crt", tmp_path / "key")
    issued.cert_chain_pems[0].write_to_path(pair[0])
    issued.private_key_pem.write_to_path(pair[1])
    trustme.CA().cert_pem.write_to_path(ca := tmp_path / "ca.crt")
    with serving(tls=Certificates(*pair)) as backend:
        to = ("--forward-to", backend.endpoint, "--forward-protocol", protocol, "--forward-ca", str(ca))
        tracer = listening(tmp_path, *to)
        ending.append(tracer)
        hear(tracer, WELL, "well-0123abcd")
        until(lambda: tracer.get("/api/health")["forward"]["status"] != "ok")
        assert backend.payloads == []


@pytest.mark.long
def test_what_one_sidecar_forwards_another_judges_alike(tmp_path: Path, ending: list[Tracer]) -> None:
    """The second one takes findings for foreign spans, and finds the same on its own."""
    (second_folder := tmp_path / "second").mkdir()
    second = listening(second_folder, "--retain-hours", "1e6")
    ending.append(second)
    first = listening(tmp_path, "--retain-hours", "1e6", "--forward-to", f"http://127.0.0.1:{second.grpc_port}")
    ending.append(first)
    hear(first, DRIFT, "drift-0123abcd")
    until(lambda: any(span["name"] == "kv.request" for span in second.get("/api/spans")))
    (mine,), (theirs,) = first.get("/api/findings"), second.get("/api/findings")
    assert mine["explanation"] == theirs["explanation"]
    health = second.get("/api/health")
    assert [recorder["missing"] for recorder in health["recorders"]] == [0]
    until(lambda: any(span["name"] == "kv.finding stale-lookup" for span in second.get("/api/spans")))
    assert "kvtrail_spans_foreign_total 1.0" in second.read("/metrics")
