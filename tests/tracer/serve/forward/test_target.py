"""Where spans are sent: addresses, headers and certificates, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvtrail.__main__ import main
from kvtrail.tracer.serve.forward.target import GRPC, HTTP, BadTarget, Headers, Settings, Target


@pytest.mark.parametrize(
    ("url", "protocol", "sent_to"),
    [
        ("http://tempo:4317", GRPC, "tempo:4317"),
        ("http://tempo:4317/", GRPC, "tempo:4317"),
        ("http://[::1]:4317", GRPC, "[::1]:4317"),
        ("https://api.example.com", GRPC, "api.example.com:443"),
        ("http://collector:4318", HTTP, "http://collector:4318/v1/traces"),
        ("http://collector:4318/", HTTP, "http://collector:4318/v1/traces"),
        ("http://collector:4318/v1/traces", HTTP, "http://collector:4318/v1/traces"),
        ("https://api.example.com/otel", HTTP, "https://api.example.com/otel/v1/traces"),
    ],
)
def test_addresses_are_as_exporters_take_them(url: str, protocol: str, sent_to: str) -> None:
    target = Target(url, protocol=protocol)
    assert (target.address if protocol == GRPC else target.traces_url) == sent_to


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--forward-to", "tempo:4317"), "'tempo:4317' is no URL such as http://tempo:4317"),
        (("--forward-to", "grpc://tempo:4317"), "is no URL such as"),
        (("--forward-to", "http://"), "is no URL such as"),
        (("--forward-to", "http://tempo"), "needs a port: OTLP is usually on 4317 (grpc) or 4318 (http/protobuf)"),
        (("--forward-to", "http://tempo:99999"), "Port out of range"),
        (("--forward-to", "http://me:secret@tempo:4317"), "the URL holds a user or a password"),
        (("--forward-to", "http://tempo:4317/v1/traces"), "has a path, and gRPC has none"),
        (("--forward-to", "http://tempo:4317", "--forward-ca", "x"), "certificates need https://"),
        (("--forward-to", "https://tempo", "--forward-ca", "none.pem"), "cannot use these files for TLS: none.pem"),
        (
            ("--forward-to", "https://tempo", "--forward-cert", "x"),
            "a client's certificate and its key belong together",
        ),
        (("--forward-to", "http://tempo:4317", "--forward-headers-file", "none"), "cannot read the headers"),
        (("--forward-headers-file", "x"), "--forward-headers-file needs --forward-to"),
        (("--forward-sample", "1.5"), "1.5 is not in the range 0<=x<=1"),
        (("--forward-protocol", "http/json"), "'http/json' is not one of 'grpc', 'http/protobuf'"),
        (("--forward-to", "http://localhost:4317"), "--forward-to is this sidecar itself"),
        (("--forward-to", "http://127.0.0.1:5000", "--http-port", "5000"), "--forward-to is this sidecar itself"),
        (("--forward-to", "http://10.1.2.3:4317", "--host", "10.1.2.3"), "--forward-to is this sidecar itself"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*options)
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.output.split())
    assert "secret@" not in result.output
    assert not list(tmp_path.iterdir())


def test_options_become_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file, too."""
    given: dict[str, object] = {}
    monkeypatch.setattr("kvtrail.tracer.serve.server.serve", lambda **options: given.update(options))
    path = tmp_path / "kvtrail.yaml"
    path.write_text("serve: {forward-to: 'http://tempo:4317', forward-sample: 0.05, forward-slow-ms: 500}\n")
    result = CliRunner().invoke(main, ["--config", str(path), "serve", "--forward-memory-mib", "2"])
    assert result.exit_code == 0, result.output
    assert given["forward"] == Settings(Target("http://tempo:4317"), 0.05, 500_000_000, 2 << 20)
    assert not [name for name in given if name.startswith("forward_")]
    assert run().exit_code == 0
    assert given["forward"] is None


def test_headers_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used leaves those from before, and is reported once."""
    path = tmp_path / "headers"
    path.write_text("# of the vendor\nAuthorization: Bearer a:b\n\nx-scope:  one \n")
    headers = Headers(path)
    assert headers.now() == [("authorization", "Bearer a:b"), ("x-scope", "one")]
    path.write_text("authorization: Bearer second\n")
    assert headers.now() == [("authorization", "Bearer second")]
    path.unlink()
    assert headers.now() == headers.now() == [("authorization", "Bearer second")]
    assert len(caplog.records) == 1
    path.write_text("authorization: Bearer third\n")
    assert headers.now() == [("authorization", "Bearer third")]


@pytest.mark.parametrize("line", ["authorization", "a b: c", ": x", "x: \x01", "x: é", "naïve: x"])
def test_a_wrong_header_is_not_repeated(tmp_path: Path, line: str) -> None:
    path = tmp_path / "headers"
    path.write_text(f"# secrets\n{line} hush\n")
    with pytest.raises(BadTarget, match="line 2: it must be `name: value`") as refused:
        Headers(path)
    assert "hush" not in str(refused.value)
