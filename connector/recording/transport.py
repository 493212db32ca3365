"""Sends encoded spans with the OpenTelemetry SDK's OTLP exporters.

The exporters provide endpoint, headers, TLS, timeout, compression and retries, with their `OTEL_EXPORTER_OTLP_*` variables.
Only their encoding is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_EXPORT_BATCH_SIZE
from opentelemetry.sdk.trace.export import SpanExportResult

from kvtrail.connector.recording import environment, send_failures
from kvtrail.connector.recording.send_failures import SendFailure
from kvtrail.tracer.events.losses import Lost
from kvtrail.tracer.events.semconv import RECEIVER

logger = logging.getLogger("vllm.kvtrail")

THREAD_NAME = "kvtrail-recorder"
"""Name of the thread that sends."""
_AGAIN_HTTP = (408, 429, 502, 503, 504)
"""Retryable OTLP/HTTP status codes, and the code of a receiver that timed out waiting for a body."""
_TOO_LARGE_HTTP = 413
_RETRY_INFO = b"google.rpc.RetryInfo"


REFUSALS = (Lost.TOO_LARGE, Lost.REFUSED)
"""Why a receiver permanently refuses a request."""


class Refused(Exception):
    """The receiver permanently refuses a request."""

    def __init__(self, why: Lost) -> None:
        super().__init__(why.value)
        self.why = why


class _Away(Exception):
    """No receiver listens. The SDK would wait for seconds before a retry; the recorder has its own retry interval."""


class Transport(Protocol):
    """Sends one encoded `ExportTraceServiceRequest`.

    Attributes:
        endpoint: its destination.
        is_kvtrail: whether the receiver of the last acknowledged request identified itself as kvtrail.
        failure: why the last failed request was not acknowledged.
    """

    endpoint: str
    is_kvtrail: bool
    failure: SendFailure

    def send(self, payload: bytes) -> bool:
        """Returns True if the receiver has acknowledged it. Blocks at most for the exporter's timeout.

        Raises:
            Refused: the receiver permanently refuses it.
        """

    def close(self) -> None:
        """Abort the current send."""


class _Grpc:
    def __init__(self, endpoint: str) -> None:
        from grpc import RpcError
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        this = self

        class Stub:
            """The service's stub for requests that are already encoded."""

            def __init__(self, channel: Any) -> None:
                self._call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

            def Export(self, request: bytes, **how: Any) -> Any:
                try:
                    response, call = self._call.with_call(request, **how)
                except RpcError as error:  # this one is a grpc.Call, too
                    code, trailing = error.code().name, error.trailing_metadata() or ()
                    why = None if error.details() == _FULL else _refusal(code, trailing)
                    this.failure = send_failures.of_grpc(code, error.details() or "", is_refusal=why is not None)
                    if why is not None:
                        raise Refused(why) from None
                    if code == "UNAVAILABLE" and not _says_when(trailing):
                        raise _Away from None
                    raise
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
        self.endpoint, self.is_kvtrail, self.failure = endpoint, False, SendFailure.UNKNOWN

    def send(self, payload: bytes) -> bool:
        try:
            return self._exporter.export(payload) is SpanExportResult.SUCCESS  # type: ignore[arg-type]  # encoded already
        except Refused:
            raise
        except _Away:
            if self._exporter._channel is not None:  # it would wait longer each time before it connects
                self._exporter._channel.close()
                self._exporter._initialize_channel_and_stub()
            return False
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
        self.endpoint, self.is_kvtrail, self.failure = endpoint, False, SendFailure.UNKNOWN

    def send(self, payload: bytes) -> bool:
        try:
            result = self._client.export(payload)
        except Exception:
            logger.debug("kvtrail: the SDK's exporter failed", exc_info=True)
            return False
        code = result.status_code
        is_refusal = code is not None and code >= 400 and code not in _AGAIN_HTTP
        if code is not None and not result.success:
            self.failure = send_failures.of_http(code, is_refusal=is_refusal)
        if is_refusal:
            raise Refused(Lost.TOO_LARGE if code == _TOO_LARGE_HTTP else Lost.REFUSED)
        return bool(result.success)

    def _asked(self, *what: Any, **how: Any) -> Any:
        result = self._request(*what, **how)
        if result.error is not None:
            self.failure = send_failures.of_text(f"{type(result.error).__name__}: {result.error}")
            raise _Away
        self.is_kvtrail = RECEIVER in {name.lower() for name in result.headers()}
        return result

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


_FULL = "Concurrent RPC limit exceeded!"
"""The message of gRPC's Python library, and so of kvtrail, for too many calls, with the code RESOURCE_EXHAUSTED."""
_AGAIN_GRPC = ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
"""Retryable OTLP/gRPC status codes."""


def _refusal(code: str, trailing: Iterable[tuple[str, str | bytes]]) -> Lost | None:
    """The refusal in a gRPC error, as OTLP defines it: RESOURCE_EXHAUSTED is not a refusal if the receiver names a retry
    delay. None if the request may be retried."""
    if code in _AGAIN_GRPC:
        return None
    if code != "RESOURCE_EXHAUSTED":
        return Lost.REFUSED
    return None if _says_when(trailing) else Lost.TOO_LARGE


def _says_when(trailing: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the receiver names a retry delay."""
    return any(
        key == "google.rpc.retryinfo-bin" or (key == "grpc-status-details-bin" and _RETRY_INFO in bytes(value))  # type: ignore[arg-type]  # `-bin` is bytes
        for key, value in trailing
    )


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
    """Maximum number of spans in one request."""
    return environment.number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512)


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD_NAME


for _name in (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
):
    # The SDK logs every failed attempt; the recorder warns once.
    logging.getLogger(_name).addFilter(_is_of_another_thread)
