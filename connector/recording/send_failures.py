"""Reasons of failed sends, with remedies, as texts for an engine's log.

gRPC and HTTP report them as codes or, without an answer, as texts of their libraries, which are searched for known
words. Only the log depends on the result.
"""

from __future__ import annotations

from enum import Enum


class SendFailure(Enum):
    """A reason, and the remedy."""

    UNKNOWN = "", "Start one with `kvtrail serve`, or point OTEL_EXPORTER_OTLP_ENDPOINT at it."
    NOBODY = (
        "no service listens there",
        "Start one with `kvtrail serve`, or point OTEL_EXPORTER_OTLP_ENDPOINT at it.",
    )
    UNRESOLVED = "no address is known for that name", "Check the name in OTEL_EXPORTER_OTLP_ENDPOINT, and the DNS."
    TIMEOUT = (
        "it did not answer in time",
        "It hangs, is overloaded, or a firewall drops the packets; OTEL_EXPORTER_OTLP_TIMEOUT sets the timeout in seconds.",
    )
    BUSY = (
        "it cannot accept anything now",
        "The recorder retries; if this persists, check the receiver's log, disk and CPU.",
    )
    TOKEN = (
        "it refuses the token",
        "Set OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20TOKEN', with a token that may write"
        " (`kvtrail serve --token-file`).",
    )
    TLS = (
        "no TLS connection can be made",
        "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of the authority that signed the receiver's certificate, which"
        " must be of the name in OTEL_EXPORTER_OTLP_ENDPOINT; use http:// if the receiver has no TLS.",
    )
    CLOSED = "it closes the connection", "If it expects TLS, OTEL_EXPORTER_OTLP_ENDPOINT must begin with https://."
    NO_OTLP = (
        "the service there does not accept spans by this protocol",
        "gRPC has port 4317 and HTTP 4318 by default, and OTEL_EXPORTER_OTLP_PROTOCOL must fit: grpc or http/protobuf.",
    )
    REFUSES = "it refuses all requests", "Its log should have the reason."

    @property
    def why(self) -> str:
        """The reason, as the end of `no tracer answers at ...`; empty if unknown."""
        return f": {self.value[0]}" if self.value[0] else ""

    @property
    def advice(self) -> str:
        """The remedy."""
        return self.value[1]


ALL = tuple(SendFailure)
"""The reasons, by their number in answers of the export process."""
_HTTP = {401: SendFailure.TOKEN, 403: SendFailure.TOKEN, **dict.fromkeys((404, 405, 415), SendFailure.NO_OTLP)}
_GRPC = {
    "UNAUTHENTICATED": SendFailure.TOKEN,
    "PERMISSION_DENIED": SendFailure.TOKEN,
    "UNIMPLEMENTED": SendFailure.NO_OTLP,
    "DEADLINE_EXCEEDED": SendFailure.TIMEOUT,
    "RESOURCE_EXHAUSTED": SendFailure.BUSY,
}
_WORDS = (
    (SendFailure.NOBODY, ("Connection refused",)),
    (
        SendFailure.UNRESOLVED,
        ("NameResolutionError", "Name or service not known", "Domain name not found", "DNS resolution"),
    ),
    (SendFailure.TLS, ("SSLError", "handshake failed", "SSL routines", "CERTIFICATE_VERIFY_FAILED")),
    (SendFailure.NO_OTLP, ("Failed parsing HTTP/2", "BadStatusLine", "http1.x server")),
    (SendFailure.TIMEOUT, ("timed out", "Timeout", "Deadline Exceeded")),
    (
        SendFailure.CLOSED,
        ("Connection reset", "Socket closed", "Connection aborted", "RemoteDisconnected", "Broken pipe"),
    ),
)
"""Words in texts of the libraries; the first match counts."""


def of_http(code: int, *, is_refusal: bool) -> SendFailure:
    """The reason of a failed HTTP answer; `is_refusal`: the request must not be repeated."""
    return _HTTP.get(code, SendFailure.REFUSES if is_refusal else SendFailure.BUSY)


def of_grpc(code: str, details: str, *, is_refusal: bool) -> SendFailure:
    """The reason of a gRPC error, from its code and text."""
    if (known := _GRPC.get(code)) is not None:
        return known
    known = of_text(details)
    if known is not SendFailure.UNKNOWN:
        return known
    return SendFailure.REFUSES if is_refusal else SendFailure.BUSY


def of_text(text: str) -> SendFailure:
    """The reason from the text of an exception."""
    return next((away for away, words in _WORDS if any(word in text for word in words)), SendFailure.UNKNOWN)
