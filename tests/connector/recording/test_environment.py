"""A malformed variable of OpenTelemetry's gives one sentence and the default, and never an exception into the engine."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory import MemoryTransport, a_recorder, a_request, record
from processes import SLOW_S

from kvtrail.connector.recording import environment, exporter, transport

MALFORMED = {
    "OTEL_EXPORTER_OTLP_TIMEOUT": ["abc", "-1", "0", "nan", "inf", "1e14", "10000"],
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": ["10 s"],
    "OTEL_EXPORTER_OTLP_COMPRESSION": ["zip", "zstd", "deflate"],
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": ["br"],
    "OTEL_EXPORTER_OTLP_PROTOCOL": ["carrier-pigeon", "http/json", "GRPC"],
    "OTEL_EXPORTER_OTLP_ENDPOINT": ["http://[::1", "two words"],
    "OTEL_EXPORTER_OTLP_INSECURE": ["maybe"],
    "OTEL_EXPORTER_OTLP_CERTIFICATE": ["/nowhere/ca.pem", "/", "a\tb"],
    "OTEL_EXPORTER_OTLP_CLIENT_KEY": ["/nowhere/key.pem"],
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": ["/nowhere/client.pem"],
    "OTEL_EXPORTER_OTLP_HEADERS": ["no-equals-sign", "a b=secret", "key=s%C3%A9cret", "key=s%0Aecret", "ключ=secret"],
    "OTEL_TRACES_SAMPLER": ["sometimes"],
    "OTEL_TRACES_SAMPLER_ARG": ["half", "1.5", "-0.1", "nan"],
    "OTEL_BSP_SCHEDULE_DELAY": ["1e14", "100000000000000", "0", "-5", "soon", "١٢"],
    "OTEL_BSP_MAX_QUEUE_SIZE": ["0", "-1", "many", "9" * 5000],
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": ["0", "all"],
}


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    environment._log.cache_clear()
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MALFORMED.items() for value in values])
def test_it_is_said_once_and_counts_as_unset(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv(name, value)
    sent = MemoryTransport()
    with caplog.at_level(logging.INFO):
        transport.from_environment().close()
        recorder = a_recorder(sent)
        recorder.contexts.of(a_request())
        record(recorder, a_request())
        recorder.close(SLOW_S)
    assert len(sent.lookups()) == 1
    said = [each.getMessage() for each in caplog.records if "kvtrail" in each.getMessage()]
    assert len(said) == 1, said
    assert name.rpartition("_")[2].lower() in said[0].lower()
    assert "cret" not in said[0]
    assert name not in environment.usable()
    assert os.environ[name] == value, "the engine's own environment stays as it is"


@pytest.mark.parametrize("value", ["localhost:4318", "ftp://localhost", "/v1/traces", "http://"])
def test_an_address_for_http_is_a_url(value: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": value}
    assert environment.endpoint(environment.usable(environ)) == "http://localhost:4318"
    for form in ("localhost:4317", "unix:///run/otlp.sock", "dns:///collector:4317", "https://[::1]:4317"):
        assert environment.endpoint(environment.usable({"OTEL_EXPORTER_OTLP_ENDPOINT": form})) == form


def test_what_is_well_formed_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("")
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4317",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc, x-tenant=7",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate),
        "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "not ours",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "PATH": "",
    }
    assert environment.usable(environ) == environ
    assert environment.usable({"OTEL_EXPORTER_OTLP_TIMEOUT": " ", "OTEL_SERVICE_NAME": ""}) == {}
    assert environment.usable({"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}) == {}, (
        "gRPC's exporter does not know this word"
    )
    assert caplog.records == []


def test_of_several_headers_the_good_ones_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=token, odd, x-tenant=7"}
    assert environment.usable(environ) == {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=token,x-tenant=7"}
    (said,) = [each.getMessage() for each in caplog.records]
    assert "1 of the 3 headers" in said
    assert "token" not in said


def test_the_export_process_gets_the_checked_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "abc")
    started: list[dict[str, str]] = []
    plain = subprocess.Popen

    def start(*args: object, env: dict[str, str], **more: object) -> object:
        started.append(env)
        return plain(*args, env=env, **more)  # type: ignore[call-overload]  # as it was called

    monkeypatch.setattr(subprocess, "Popen", start)
    process = exporter.from_environment()
    process.close()
    assert ["OTEL_EXPORTER_OTLP_TIMEOUT" in env for env in started] == [False]


def test_a_propagator_that_is_not_installed_does_not_stop_the_import() -> None:
    code = "from kvtrail.connector.recording.contexts import caller_of; print(caller_of({'traceparent': %r}).trace_id)"
    command = [sys.executable, "-c", code % f"00-{7:032x}-{8:016x}-01"]
    run = subprocess.run(
        command, env={**os.environ, "OTEL_PROPAGATORS": "pigeon"}, capture_output=True, text=True, check=True
    )
    assert run.stdout == "7\n"
