"""The client of the tracer's api, against a transport that answers without a network."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import trustme

from kvtrail.dashboard.client import HEALTH_S, Tracer, TracerAway

URL = "http://tracer.test:4318"


def tracer(answer: Callable[[httpx.Request], httpx.Response]) -> Tracer:
    return Tracer(URL + "/", transport=httpx.MockTransport(answer))


def test_search_and_filters_reach_the_api() -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(200, json=[{"request": "1-0123abcd"}])

    assert tracer(answer).get("requests", search="a&b", status="running", verdict="drift", limit=7) == [
        {"request": "1-0123abcd"}
    ]
    assert asked[0].path == "/api/requests"
    assert dict(asked[0].params) == {"search": "a&b", "status": "running", "verdict": "drift", "limit": "7"}


def test_an_unknown_request_is_none() -> None:
    assert tracer(lambda _: httpx.Response(404, json={"detail": "no such request"})).request("nope") is None


@pytest.mark.parametrize("request_id", ["a/b", "../findings", "a?b=c", "ü#1"])
def test_an_id_stays_one_segment_of_the_path(request_id: str) -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.partition(b"?")[0])
        return httpx.Response(404)

    assert tracer(answer).request(request_id) is None
    assert paths[0].startswith(b"/api/requests/")
    assert paths[0].count(b"/") == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ConnectError("refused"), "does not answer. Start it with `kvtrail serve`."),
        (
            httpx.ReadTimeout("slow"),
            "does not answer in time. It may be busy: a shorter range takes less. If it hangs, restart it.",
        ),
    ],
)
def test_no_answer_names_the_address_and_what_to_do(error: httpx.TransportError, said: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(TracerAway) as away:
        tracer(answer).get("health")
    assert str(away.value) == f"The tracer at {URL} {said}"


def test_a_tracer_that_hung_is_first_asked_whether_it_is_alive() -> None:
    """Each click waited for it, twice for three seconds."""
    asked: list[tuple[str, float]] = []
    hangs = True

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, request.extensions["timeout"]["read"]))
        if hangs:
            raise httpx.ReadTimeout("hangs")
        return httpx.Response(200, json=[])

    client = tracer(answer)
    for _ in range(2):
        with pytest.raises(TracerAway):
            client.get("requests")
    assert asked == [("/api/requests", 3.0), ("/api/health", HEALTH_S)]
    hangs = False
    asked.clear()
    assert client.get("requests") == client.get("requests") == []
    assert [path for path, _ in asked] == ["/api/health", "/api/requests", "/api/requests"]


def test_an_error_of_the_tracer_is_said() -> None:
    with pytest.raises(TracerAway, match="answers with error 500"):
        tracer(lambda _: httpx.Response(500)).get("totals")


@pytest.mark.parametrize("answer", [httpx.Response(200, text="<html>"), httpx.Response(404)])
def test_something_else_on_the_port_is_said(answer: httpx.Response) -> None:
    with pytest.raises(TracerAway, match="is not a kvtrail tracer"):
        tracer(lambda _: answer).get("health")


def test_a_malformed_address_is_no_traceback() -> None:
    with pytest.raises(TracerAway):
        Tracer("http://127.0.0.1:1").get("health")


def patient(client: Tracer) -> Tracer:
    """The same without its limits: on a busy machine they would end a handshake."""
    client._http.timeout = None
    return client


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Callable[[bool], int]]:
    """Starts a server, with TLS or without; returns its port."""
    with ExitStack() as servers:

        def start(tls: bool) -> int:
            server = servers.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler))
            if tls:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                authority.issue_cert("127.0.0.1").configure_cert(context)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.callback(server.shutdown)
            return server.server_port

        yield start


@pytest.mark.parametrize(
    ("scheme", "tls", "said"),
    [
        ("https", True, "certificate that is not trusted here .*--tracer-ca"),
        ("http", True, "If it serves with TLS, name it with https://"),
        ("https", False, "If it serves without TLS, name it with http://"),
    ],
)
def test_a_mistake_with_tls_is_named(server: Callable[[bool], int], scheme: str, tls: bool, said: str) -> None:
    with pytest.raises(TracerAway, match=said):
        patient(Tracer(f"{scheme}://127.0.0.1:{server(tls)}")).get("health")


def test_the_authority_that_is_named_is_trusted(
    server: Callable[[bool], int], authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with pytest.raises(TracerAway, match="answers with error 501"):
        patient(Tracer(f"https://127.0.0.1:{server(True)}", ca=tmp_path / "ca.pem")).get("health")
