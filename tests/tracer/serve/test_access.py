"""Who may speak to the sidecar: tokens, TLS and mutual TLS, over both protocols, with the real process and real exporters."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import trustme
from forked_commands import Forked
from history import history
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from processes import SLOW_S, Tracer, listening
from wire import encoded

from kvtrail.dashboard.client import Tracer as Client
from kvtrail.dashboard.client import TracerAway
from kvtrail.refused import Refused
from kvtrail.tracer.serve.access import check_bind_address
from kvtrail.tracer.serve.tokens import Access, Role, TokenFile, role_of
from kvtrail.tracer.serve.watched_file import LOOK_AGAIN_S

STORY = "L 749 c0 h256 -> 256\nA 256\nend"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def a_span(exporter: SpanExporter) -> SpanExportResult:
    """What comes of exporting one."""
    span = TracerProvider(shutdown_on_exit=False).get_tracer("somebody").start_span("a span")
    span.end()
    result = exporter.export([span])  # type: ignore[list-item]
    exporter.shutdown()
    return result


@pytest.fixture(scope="module")
def with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "tokens").write_text("# of the engines\nfirst-token\n\n  second-token  \n")
    tracer = listening(folder, "--token-file", str(folder / "tokens"))
    yield tracer
    tracer.end()


@pytest.mark.parametrize(
    ("authorization", "fits"),
    [
        (None, False),
        ("", False),
        ("Bearer", False),
        ("Bearer first", False),
        ("Basic first-token", False),
        ("first-token", False),
        ("Bearer # of the engines", False),
        ("Bearer first-token", True),
        ("bearer second-token", True),
    ],
)
def test_a_token_is_wanted_over_http(with_tokens: Tracer, authorization: str | None, fits: bool) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for path in ("/api/health", "/metrics", "/docs", "/openapi.json", "/healthz/../api/health", "//healthz"):
        code = httpx.get(f"{with_tokens.url}{path}", headers=headers, timeout=SLOW_S).status_code
        assert code == 401 if not fits else code in (200, 404), path
    for path in ("/healthz", "/readyz"):
        assert httpx.get(f"{with_tokens.url}{path}", headers=headers, timeout=SLOW_S).status_code == 200
    body, kind = encoded(history(STORY)), {"content-type": "application/x-protobuf"}
    sent = httpx.post(f"{with_tokens.url}/v1/traces", content=body, headers=headers | kind, timeout=SLOW_S)
    assert sent.status_code == (200 if fits else 401)


def test_a_token_is_wanted_over_grpc(with_tokens: Tracer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{with_tokens.grpc_port}") as channel:
        export = channel.unary_unary(EXPORT)
        for metadata in ((), (("authorization", "Bearer no"),)):
            with pytest.raises(grpc.RpcError) as refused:
                export(b"", timeout=SLOW_S, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert export(b"", timeout=SLOW_S, metadata=(("authorization", "Bearer first-token"),)) == b""


def test_exporters_and_the_dashboard_show_it(with_tokens: Tracer, tmp_path: Path) -> None:
    headers = {"authorization": "Bearer first-token"}
    grpc_url = f"http://127.0.0.1:{with_tokens.grpc_port}"
    assert a_span(GrpcExporter(endpoint=grpc_url, insecure=True, headers=headers)) is SpanExportResult.SUCCESS
    assert a_span(HttpExporter(endpoint=f"{with_tokens.url}/v1/traces", headers=headers)) is SpanExportResult.SUCCESS
    token = tmp_path / "token"
    token.write_text("second-token\n")
    assert Client(with_tokens.url, token_file=token).get("health")["status"] == "ok"
    with pytest.raises(TracerAway, match="requires a token"):
        Client(with_tokens.url).get("health")
    with pytest.raises(TracerAway, match="cannot be read"):
        Client(with_tokens.url, token_file=tmp_path / "none").get("health")


@pytest.fixture(scope="module")
def with_roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """A sidecar with a token for each role, and `every-token` for all of them."""
    folder = tmp_path_factory.mktemp("roles")
    options = []
    for name in (*Role, "every"):
        (folder / name).write_text(f"{name}-token\n")
        options += ["--token-file", f"{folder / name}" if name == "every" else f"{name}={folder / name}"]
    tracer = listening(folder, *options)
    yield tracer
    tracer.end()


@pytest.mark.parametrize("holder", [*Role, "every"])
def test_a_token_opens_its_own_role_alone(with_roles: Tracer, holder: str) -> None:
    """Over HTTP, for each route there is: sending spans is to write, and all else is to read."""
    headers = {"authorization": f"Bearer {holder}-token"}
    every = {"authorization": "Bearer every-token"}
    routes = httpx.get(f"{with_roles.url}/openapi.json", headers=every, timeout=SLOW_S).json()["paths"]
    asked = [(method.upper(), path) for path, methods in routes.items() for method in methods]
    assert {("POST", "/v1/traces"), ("GET", "/metrics"), ("GET", "/api/requests")} <= set(asked)
    asked += [("DELETE", "/api/requests"), ("PUT", "/v1/traces"), ("POST", "/api/requests"), ("POST", "//v1/traces")]
    for method, path in asked:
        if path in ("/healthz", "/readyz"):  # open to all
            continue
        answer = httpx.request(method, f"{with_roles.url}{path}", headers=headers, timeout=SLOW_S)
        opened = holder in ("every", role_of(method, path))
        assert (answer.status_code != 403) == opened, (method, path)
        if not opened:
            assert answer.headers["www-authenticate"].endswith(f'scope="{role_of(method, path)}"')
            assert answer.json() == {"detail": f"this token may not {role_of(method, path)}: use a token that may"}


@pytest.mark.parametrize("holder", [*Role, "every"])
def test_only_writers_send_over_grpc(with_roles: Tracer, holder: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{with_roles.grpc_port}") as channel:
        export = channel.unary_unary(EXPORT)
        metadata = (("authorization", f"Bearer {holder}-token"),)
        if holder in ("write", "every"):
            assert export(b"", timeout=SLOW_S, metadata=metadata) == b""
            return
        with pytest.raises(grpc.RpcError, match="this token may not write") as refused:
            export(b"", timeout=SLOW_S, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_the_dashboard_says_that_its_token_may_not_read(with_roles: Tracer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    for name in ("read", "write"):
        token.write_text(f"{name}-token")
        client = Client(with_roles.url, token_file=token)
        if name == "read":
            assert client.get("health")["status"] == "ok"
        else:
            with pytest.raises(TracerAway, match="may not read"):
                client.get("health")


def test_a_role_without_a_file_is_closed(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one")
    assert Access([TokenFile.of(f"write={tmp_path}/tokens")]).roles("Bearer one") == {Role.WRITE}
    assert Access([TokenFile.of(f"{tmp_path}/tokens")]).roles("Bearer one") == {*Role}
    assert not Access([TokenFile.of(f"{tmp_path}/tokens")]).roles("Bearer two")


def test_tokens_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that cannot be read, or holds none, revokes those from before."""
    now_s = 0.0
    path = tmp_path / "tokens"
    path.write_text("one")
    access = Access([TokenFile(path)], clock=lambda: now_s)
    for text, fitting in (("two\none", {"one", "two"}), ("two", {"two"}), ("# none", set()), ("three", {"three"})):
        path.write_text(text)
        now_s += LOOK_AGAIN_S
        assert {each for each in ("one", "two", "three") if access.roles(f"Bearer {each}")} == fitting, text
    path.unlink()
    now_s += LOOK_AGAIN_S
    assert not access.roles("Bearer three")
    assert "its old content is revoked" in caplog.text
    path.write_text("three")
    now_s += LOOK_AGAIN_S
    assert access.roles("Bearer three")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "some-name"])
def test_nobody_listens_beyond_this_machine_by_mistake(host: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="set --token-file, or --insecure"):
        check_bind_address(host, None, insecure=False)
    check_bind_address(host, None, insecure=True)
    (tmp_path / "tokens").write_text("one")
    check_bind_address(host, Access([TokenFile(tmp_path / "tokens")]), insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_no_token(host: str) -> None:
    check_bind_address(host, None, insecure=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "set --token-file, or --insecure"),
        (("--grpc-host", "0.0.0.0"), "set --token-file, or --insecure"),
        (("--token-file", "none"), "cannot read the tokens"),
        (("--token-file", os.devnull), "holds no token"),
        (("--token-file", "wirte=tokens"), "'wirte' is not a role: write one of write, read"),
        (("--token-file", "read=none"), "cannot read the tokens"),
        (("--tls-cert", "none", "--tls-key", "none"), "cannot use these files for TLS: none, none"),
        (("--tls-cert", "none"), "belong together"),
        (("--tls-client-ca", "none"), "needs both"),
    ],
)
def test_what_is_unsafe_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    (empty := tmp_path / "empty").mkdir()
    monkeypatch.chdir(empty)
    done = Forked(["serve", "--store", "s.db", *options], out=tmp_path / "out", error=tmp_path / "error")
    assert done.wait() == 2
    error = (tmp_path / "error").read_text()
    assert said in error
    assert "Traceback" not in error
    assert not list(empty.iterdir())


@pytest.fixture(autouse=True)
def no_other_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the SDK's exporter over HTTP, these variables replace the authorities that it is given."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(authority: trustme.CA, folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path, Path]:
    """The authority's certificate, and one that it has signed, with its key."""
    issued, paths = authority.issue_cert(name), (folder / f"ca-{name}", folder / f"cert-{name}", folder / f"key-{name}")
    authority.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    return paths


def test_tls(authority: trustme.CA, tmp_path: Path) -> None:
    ca, cert, key = files(authority, tmp_path)
    tracer = listening(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        url = f"https://127.0.0.1:{tracer.http_port}"
        assert url in tracer.log.read_text()
        assert Client(url, ca=ca).get("health")["status"] == "ok"
        with pytest.raises(TracerAway):
            Client(url).get("health")
        assert a_span(HttpExporter(endpoint=f"{url}/v1/traces", certificate_file=str(ca))) is SpanExportResult.SUCCESS
        trusted = grpc.ssl_channel_credentials(ca.read_bytes())
        grpc_url = f"https://127.0.0.1:{tracer.grpc_port}"
        assert a_span(GrpcExporter(endpoint=grpc_url, credentials=trusted)) is SpanExportResult.SUCCESS
        tracer.process.send_signal(signal.SIGTERM)
        assert tracer.process.wait(SLOW_S) == 0
    finally:
        tracer.end()


def heard_over_http(url: str, ca: Path, pair: tuple[Path, Path] | None) -> bool:
    """Whether a client with this certificate and key, or without any, is answered."""
    trust = ssl.create_default_context(cafile=ca)
    if pair is not None:
        trust.load_cert_chain(*pair)
    try:
        return httpx.get(f"{url}/readyz", verify=trust, timeout=SLOW_S).status_code == 200
    except httpx.TransportError:
        return False


def heard_over_grpc(port: int, ca: Path, pair: tuple[Path, Path] | None) -> bool:
    chain = (None, None) if pair is None else (pair[1].read_bytes(), pair[0].read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca.read_bytes(), *chain)) as channel:
        try:
            return bool(channel.unary_unary(EXPORT)(b"", timeout=SLOW_S) == b"")
        except grpc.RpcError:
            return False


def handshake(port: int, context: ssl.SSLContext, name: str = "127.0.0.1") -> str | None:
    """Over a plain socket: the version of TLS that both agree on."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SLOW_S) as connection,
        context.wrap_socket(connection, server_hostname=name) as wrapped,
    ):
        return wrapped.version()


def test_handshakes_that_must_fail_do_and_harm_nothing(authority: trustme.CA, tmp_path: Path) -> None:
    """On both ports: an old version of TLS, a stranger's authority, another name, no TLS, noise and half a greeting."""
    ca, cert, key = files(authority, tmp_path)
    tracer = listening(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        for port in (tracer.http_port, tracer.grpc_port):
            trust = ssl.create_default_context(cafile=ca)
            trust.set_alpn_protocols(["h2", "http/1.1"])
            assert handshake(port, trust) == "TLSv1.3"
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                handshake(port, trust, "127.0.0.2")
            with pytest.raises(ssl.SSLCertVerificationError):
                handshake(port, ssl.create_default_context())
            old = ssl.create_default_context(cafile=ca)
            with warnings.catch_warnings(action="ignore"):  # Python warns that it is old
                old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                handshake(port, old)
            for said in (b"GET /api/health HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(500), b"\x16\x03\x01\x02\x00\x01"):
                with socket.create_connection(("127.0.0.1", port), timeout=SLOW_S) as connection:
                    connection.sendall(said)
                    connection.shutdown(socket.SHUT_WR)
                    answer = b""
                    with contextlib.suppress(ConnectionResetError):
                        while part := connection.recv(4096):
                            answer += part
                    assert not answer.startswith(b"HTTP")
            assert handshake(port, trust) == "TLSv1.3"
    finally:
        tracer.end()


def test_mutual_tls(authority: trustme.CA, tmp_path: Path) -> None:
    """A client without a certificate, or with somebody else's, hears nothing."""
    ca, cert, key = files(authority, tmp_path)
    _, own_cert, own_key = files(authority, tmp_path, "engine.test")
    _, other_cert, other_key = files(trustme.CA(), tmp_path, "stranger.test")
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(ca))
    tracer = listening(tmp_path, *options)
    try:
        url = f"https://127.0.0.1:{tracer.http_port}"
        for pair, heard in (((own_cert, own_key), True), ((other_cert, other_key), False), (None, False)):
            assert heard_over_http(url, ca, pair) is heard
            assert heard_over_grpc(tracer.grpc_port, ca, pair) is heard
        sent = HttpExporter(
            endpoint=f"{url}/v1/traces",
            certificate_file=str(ca),
            client_certificate_file=str(own_cert),
            client_key_file=str(own_key),
        )
        assert a_span(sent) is SpanExportResult.SUCCESS
    finally:
        tracer.end()
