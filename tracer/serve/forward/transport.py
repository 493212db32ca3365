"""OTLP over gRPC and over HTTP: sends one request, and returns how the receiver answered.

Which refusals may be tried again, and when, is OTLP's: https://opentelemetry.io/docs/specs/otlp/#failures.
"""

from __future__ import annotations

import gzip
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvtrail.tracer.serve.forward.target import GRPC, Headers, Target

_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_DETAILS = "grpc-status-details-bin"
_RECONNECT_MS = 5_000
"""How long gRPC waits at most before it connects again. Its default is two minutes."""
_AGAIN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_HTTP_AGAIN = frozenset({429, 502, 503, 504})
_PROTOBUF = "application/x-protobuf"
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request.

    Attributes:
        taken: the receiver has it.
        rejected: spans of it that the receiver would not take.
        again: it may be sent again.
        after_s: not before this many seconds have passed, if the receiver says so.
        reason: why it was not taken, or not all of it.
    """

    taken: bool
    rejected: int = 0
    again: bool = False
    after_s: float | None = None
    reason: str = ""


class Transport(Protocol):
    def send(self, payload: bytes, *, timeout_s: float) -> Answer:
        """Send one `ExportTraceServiceRequest`. Never raises."""

    def close(self) -> None:
        """Give up what is being sent."""


def transport(target: Target, headers: Headers) -> Transport:
    """The transport to a receiver."""
    return _Grpc(target, headers) if target.protocol == GRPC else _Http(target, headers)


class _Grpc:
    def __init__(self, target: Target, headers: Headers) -> None:
        options = [("grpc.max_reconnect_backoff_ms", _RECONNECT_MS)]
        if target.is_tls:
            credentials = grpc.ssl_channel_credentials(*target.for_grpc())
            self._channel = grpc.secure_channel(target.address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target.address, options)
        self._export = self._channel.unary_unary(_EXPORT)  # without a serializer it takes and gives bytes
        self._headers = headers
        self._compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression

    def send(self, payload: bytes, *, timeout_s: float) -> Answer:
        try:
            metadata = self._headers.now()
            answer = self._export(payload, timeout=timeout_s, metadata=metadata, compression=self._compression)
        except grpc.RpcError as error:
            code = error.code()
            after_s = _retry_delay(error.trailing_metadata() or ())
            # A receiver that is overloaded says when to come back; one to which the request is too large does not.
            again = code in _AGAIN or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and after_s is not None)
            return Answer(False, again=again, after_s=after_s, reason=_short(f"{code.name}: {error.details()}"))
        except ValueError as error:  # a metadata value that gRPC refuses, or the channel was closed meanwhile
            return Answer(False, reason=_short(str(error)))
        return _accepted(answer)

    def close(self) -> None:
        self._channel.close()


class _Http:
    def __init__(self, target: Target, headers: Headers) -> None:
        import httpx

        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of each request
        self._client = httpx.Client(verify=target.for_http() if target.is_tls else True)
        self._failed = httpx.TransportError
        self._url = target.traces_url
        self._headers = headers
        self._gzip = target.compression == "gzip"

    def send(self, payload: bytes, *, timeout_s: float) -> Answer:
        headers = [*self._headers.now(), ("content-type", _PROTOBUF)]
        if self._gzip:
            payload = gzip.compress(payload, 1)
            headers.append(("content-encoding", "gzip"))
        try:
            answer = self._client.post(self._url, content=payload, headers=headers, timeout=timeout_s)
        except self._failed as error:
            return Answer(False, again=True, reason=_short(f"{type(error).__name__}: {error}"))
        except Exception as error:  # it was closed meanwhile
            return Answer(False, reason=_short(f"{type(error).__name__}: {error}"))
        if answer.is_success:
            return _accepted(answer.content)
        again = answer.status_code in _HTTP_AGAIN
        after_s = _seconds(answer.headers.get("retry-after")) if again else None
        reason = f"{answer.status_code} {answer.reason_phrase}: {_message(answer.content)}"
        return Answer(False, again=again, after_s=after_s, reason=_short(reason))

    def close(self) -> None:
        self._client.close()


def _accepted(body: bytes) -> Answer:
    """The answer that a receiver gives of what it has taken; some do not write OTLP's."""
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Answer(True)
    return Answer(True, rejected=max(0, partial.rejected_spans), reason=_short(partial.error_message))


def _retry_delay(metadata: Iterable[tuple[str, Any]]) -> float | None:
    """The delay of a `google.rpc.RetryInfo`."""
    for key, value in metadata:
        if key == _DETAILS:
            try:
                for detail in Status.FromString(value).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        seconds: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                        return max(0.0, seconds)
            except DecodeError:
                return None
    return None


def _seconds(retry_after: str | None) -> float | None:
    """The header of that name: seconds, or a date. https://www.rfc-editor.org/rfc/rfc9110#field.retry-after."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _message(body: bytes) -> str:
    """What an error says: OTLP's are a `google.rpc.Status`."""
    try:
        status = Status.FromString(body)
    except DecodeError:
        return body[:_LONGEST_REASON].decode("utf-8", "replace")
    return str(status.message)


def _short(reason: str) -> str:
    return " ".join(reason.split())[:_LONGEST_REASON]
