"""How encoded spans leave a process: the OpenTelemetry SDK's own OTLP exporters, given ready bytes.

Endpoint, headers, TLS, timeout, compression and retry are theirs, and so are the `OTEL_EXPORTER_OTLP_*` variables that
set them. Only their encoding is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_EXPORT_BATCH_SIZE
from opentelemetry.sdk.trace.export import SpanExportResult

from kvtrail.connector.recording import environment
from kvtrail.tracer.model.semconv import RECEIVER

logger = logging.getLogger("vllm.kvtrail")

THREAD_NAME = "kvtrail-recorder"
"""Name of the thread that sends."""


class Transport(Protocol):
    """Sends one encoded `ExportTraceServiceRequest`.

    Attributes:
        endpoint: where it goes.
        is_kvtrail: whether the receiver of the last one that was acknowledged said that it is kvtrail's.
    """

    endpoint: str
    is_kvtrail: bool

    def send(self, payload: bytes) -> bool:
        """True once the receiver has acknowledged it. Blocks for the exporter's timeout at most; never raises."""

    def close(self) -> None:
        """Give up what is being sent."""


class _Grpc:
    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        this = self

        class Stub:
            """The service's stub for requests that are bytes already."""

            def __init__(self, channel: Any) -> None:
                self._call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

            def Export(self, request: bytes, **how: Any) -> Any:
                response, call = self._call.with_call(request, **how)
                this.is_kvtrail = any(key == RECEIVER for key, *_ in call.initial_metadata() or ())
                return response

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
        self.endpoint, self.is_kvtrail = endpoint, False

    def send(self, payload: bytes) -> bool:
        try:
            return self._exporter.export(payload) is SpanExportResult.SUCCESS  # type: ignore[arg-type]  # encoded already
        except Exception:
            logger.debug("kvtrail: the SDK's exporter failed", exc_info=True)
            return False

    def close(self) -> None:
        self._exporter.shutdown()


class _Http:
    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._exporter = OTLPSpanExporter()
        self._client = self._exporter._client  # the exporter's public method would encode the spans once more
        self._request, self._client._transport.request = self._client._transport.request, self._asked  # type: ignore[method-assign]
        self.endpoint, self.is_kvtrail = endpoint, False

    def send(self, payload: bytes) -> bool:
        try:
            return bool(self._client.export(payload).success)
        except Exception:
            logger.debug("kvtrail: the SDK's exporter failed", exc_info=True)
            return False

    def _asked(self, *what: Any, **how: Any) -> Any:
        result = self._request(*what, **how)
        self.is_kvtrail = RECEIVER in {name.lower() for name in result.headers()}
        return result

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


_TRANSPORTS: dict[str, Callable[[str], Transport]] = {"grpc": _Grpc, "http/protobuf": _Http}
"""By protocol: the transport to an endpoint, which the SDK reads from the environment by itself."""


def from_environment() -> Transport:
    """The transport that `OTEL_EXPORTER_OTLP_(TRACES_)PROTOCOL` names.

    Raises:
        ImportError: the exporter's package is not installed.
    """
    environ = environment.usable()
    with environment.only(environ):
        return _TRANSPORTS[environment.protocol(environ)](environment.endpoint(environ))


def batch_size() -> int:
    """How many spans one request holds at most."""
    return environment.number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512)


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD_NAME


for _name in (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
):
    # The SDK logs every failed attempt; the recorder warns once.
    logging.getLogger(_name).addFilter(_is_of_another_thread)
