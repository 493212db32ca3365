"""How encoded spans leave the process: the OpenTelemetry SDK's own OTLP exporters, fed with ready bytes.

Endpoint, headers, TLS, timeout, compression and retry are theirs, and so are the `OTEL_EXPORTER_OTLP_*` variables that
set them. Only their encoding is left out.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from opentelemetry.sdk.environment_variables import (
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


class Delivery:
    """Sends the requests of one batch after another. Of a batch that comes again, only those that were not acknowledged."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._batch: int | None = None
        self._acknowledged = 0

    def send(self, batch: int, requests: Sequence[bytes]) -> bool:
        """True once all requests are acknowledged. `batch` is a number that no other batch has, and its requests are always
        the same."""
        if batch != self._batch:
            self._batch, self._acknowledged = batch, 0
        for request in requests[self._acknowledged :]:
            if not self._transport.send(request):
                return False
            self._acknowledged += 1
        return True


class _Grpc:
    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        class Stub:
            """The service's stub for requests that are bytes already."""

            def __init__(self, channel: Any) -> None:
                self.Export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

        class Exporter(OTLPSpanExporter):
            """The SDK's exporter with requests that are encoded already."""

            def _initialize_channel_and_stub(self) -> None:
                super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
                self._client = Stub(self._channel)  # type: ignore[assignment]  # it is only asked to Export

            def _translate_data(self, data: Any) -> Any:
                return data

            def _count_data(self, data: Any) -> int:
                return 0  # only for the SDK's own metrics

        self._exporter = Exporter()
        self.endpoint = endpoint()

    def send(self, payload: bytes) -> bool:
        return self._exporter.export(payload) is SpanExportResult.SUCCESS  # type: ignore[arg-type]  # encoded already

    def close(self) -> None:
        self._exporter.shutdown()


class _Http:
    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._exporter = OTLPSpanExporter()
        self._client = self._exporter._client  # its public way in would encode the spans once more
        self.endpoint = endpoint()

    def send(self, payload: bytes) -> bool:
        return bool(self._client.export(payload).success)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


_MAKERS: dict[str, tuple[Callable[[], Transport], int]] = {"grpc": (_Grpc, 4317), "http/protobuf": (_Http, 4318)}
"""By protocol: the transport, and OTLP's port of that protocol."""


def endpoint() -> str:
    """Where spans go, as the variables say."""
    default = f"http://localhost:{_MAKERS[_protocol()][1]}"
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or default


def check_environment() -> None:
    """Whether there is a transport for what the environment asks for, found out without loading it.

    Raises:
        ValueError: a protocol that there is no exporter for.
        ImportError: the exporter's package is not installed; the text says which.
    """
    package = f"proto.{_protocol().partition('/')[0]}"
    try:
        found = importlib.util.find_spec(f"opentelemetry.exporter.otlp.{package}.trace_exporter")
    except ImportError:
        found = None
    if found is None:
        name = f"opentelemetry-exporter-otlp-{package.replace('.', '-')}"
        raise ImportError(f"kvtrail: sending spans over {_protocol()} needs {name}: pip install {name}")


def from_environment() -> Transport:
    """The transport that `OTEL_EXPORTER_OTLP_(TRACES_)PROTOCOL` names; gRPC, as in vLLM and the SDK, if unset.

    Raises:
        ValueError, ImportError: as `check_environment`.
    """
    check_environment()
    return _MAKERS[_protocol()][0]()


def _protocol() -> str:
    protocol = (
        os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"
    )
    if protocol not in _MAKERS:
        raise ValueError(f"kvtrail: OTLP protocol {protocol!r} is not supported; it can be {' or '.join(_MAKERS)}")
    return protocol


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Leave out the exporters' report of every failed attempt on the recorder's thread: the recorder says it once."""
    return record.threadName != THREAD_NAME


for _name in (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
):
    logging.getLogger(_name).addFilter(_keep_quiet)
