"""How encoded spans leave a process: the OpenTelemetry SDK's own OTLP exporters, given ready bytes.

Endpoint, headers, TLS, timeout, compression and retry are theirs, and so are the `OTEL_EXPORTER_OTLP_*` variables that
set them. Only their encoding is left out.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)
from opentelemetry.sdk.trace.export import SpanExportResult

THREAD_NAME = "kvtrail-recorder"
"""Name of the thread that sends."""


class Transport(Protocol):
    """Sends one encoded `ExportTraceServiceRequest`."""

    endpoint: str

    def send(self, payload: bytes) -> bool:
        """True once the receiver has acknowledged it. Blocks for the exporter's timeout at most; never raises."""

    def close(self) -> None:
        """Give up what is being sent."""


class _Grpc:
    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        class Stub:
            """The service's stub for requests that are bytes already."""

            def __init__(self, channel: Any) -> None:
                self.Export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

        class BytesExporter(OTLPSpanExporter):
            """The SDK's exporter without its encoding."""

            def _initialize_channel_and_stub(self) -> None:
                super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
                self._client = Stub(self._channel)  # type: ignore[assignment]  # only Export is called

            def _translate_data(self, data: Any) -> Any:
                return data

            def _count_data(self, data: Any) -> int:
                return 0  # only for the SDK's own metrics

        self._exporter = BytesExporter()
        self.endpoint = endpoint()

    def send(self, payload: bytes) -> bool:
        return self._exporter.export(payload) is SpanExportResult.SUCCESS  # type: ignore[arg-type]  # encoded already

    def close(self) -> None:
        self._exporter.shutdown()


class _Http:
    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._exporter = OTLPSpanExporter()
        self._client = self._exporter._client  # the exporter's public method would encode the spans once more
        self.endpoint = endpoint()

    def send(self, payload: bytes) -> bool:
        return bool(self._client.export(payload).success)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


_TRANSPORTS: dict[str, tuple[Callable[[], Transport], int]] = {"grpc": (_Grpc, 4317), "http/protobuf": (_Http, 4318)}
"""By protocol: the transport, and OTLP's port of that protocol."""


def from_environment() -> Transport:
    """The transport that `OTEL_EXPORTER_OTLP_(TRACES_)PROTOCOL` names; gRPC, as in vLLM and the SDK, if unset.

    Raises:
        ValueError, ImportError: as `check_environment`.
    """
    check_environment()
    return _TRANSPORTS[_protocol()][0]()


def check_environment() -> None:
    """Check that spans can be sent as the environment says, without loading a transport.

    Raises:
        ValueError: an unknown protocol, or a batch size that is no number.
        ImportError: the exporter's package is not installed; the text says which.
    """
    batch_size()
    package = f"proto.{_protocol().partition('/')[0]}"
    try:
        installed = importlib.util.find_spec(f"opentelemetry.exporter.otlp.{package}.trace_exporter") is not None
    except ImportError:
        installed = False
    if not installed:
        name = f"opentelemetry-exporter-otlp-{package.replace('.', '-')}"
        raise ImportError(f"kvtrail: sending spans over {_protocol()} needs {name}: pip install {name}")


def endpoint() -> str:
    """Where spans go, as the variables say."""
    default = f"http://localhost:{_TRANSPORTS[_protocol()][1]}"
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


def batch_size() -> int:
    """How many spans one request holds at most."""
    return positive(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512)


def positive(variable: str, default: int) -> int:
    """The number in an environment variable.

    Raises:
        ValueError: it is not a whole number above 0.
    """
    text = os.environ.get(variable, "").strip() or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"kvtrail: {variable} is {text!r}; it must be a whole number above 0")
    return int(text)


def _protocol() -> str:
    protocol = (
        os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"
    )
    if protocol not in _TRANSPORTS:
        raise ValueError(f"kvtrail: OTLP protocol {protocol!r} is not supported; it can be {' or '.join(_TRANSPORTS)}")
    return protocol


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD_NAME


for _name in (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
):
    # The SDK logs every failed attempt; the recorder warns once.
    logging.getLogger(_name).addFilter(_is_of_another_thread)
