"""Sending a fleet's payloads as the exporters of OpenTelemetry's SDK do: one at a time for each engine, and again, after a
while, when the receiver asks for it or is not there."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from fleet import Engine, Finding, Payload
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TIMEOUT_S = 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 1.0
AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}
AGAIN_HTTP = {429, 502, 503, 504}


class Refused(RuntimeError):
    """The receiver says that a payload is wrong: sending it again would not help."""


class Later(Exception):
    """The receiver asks for the payload once more after this many seconds; None: as the sender likes."""

    def __init__(self, after_s: float | None = None) -> None:
        self.after_s = after_s


class Client(Protocol):
    """A connection to a receiver."""

    def send(self, body: bytes) -> None:
        """Returns when it is acknowledged.

        Raises:
            Later: it is not, and should come again.
            Refused: it never will be.
        """

    def close(self) -> None:
        """End the connection."""


class GrpcClient:
    """Over gRPC."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._export = self._channel.unary_unary(METHOD)

    def send(self, body: bytes) -> None:
        try:
            self._export(body, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() in AGAIN:
                raise Later(_retry_s(error)) from error
            raise Refused(f"{error.code()}: {error.details()}") from error

    def close(self) -> None:
        self._channel.close()


def _retry_s(error: grpc.RpcError) -> float | None:
    """What the receiver says in `google.rpc.RetryInfo`."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return float(info.retry_delay.ToTimedelta().total_seconds())
    return None


class HttpClient:
    """Over HTTP, in binary form."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self._port = port
        self._headers = {"content-type": "application/x-protobuf", **(headers or {})}
        self._connection = self._connected()

    def _connected(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)

    def send(self, body: bytes) -> None:
        try:
            self._connection.request("POST", "/v1/traces", body, self._headers)
            response = self._connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = self._connected()
            raise Later from error
        if response.status in AGAIN_HTTP:
            after = response.headers.get("retry-after")
            raise Later(None if after is None else float(after))
        if response.status != http.client.OK:
            raise Refused(f"{response.status}: {said[:200]!r}")

    def close(self) -> None:
        self._connection.close()


@dataclass
class Sent:
    """What was acknowledged.

    Attributes:
        acknowledged: the findings with an acknowledged last event, and when, by the monotonic clock.
    """

    spans: int = 0
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    acknowledged: list[tuple[Finding, float]] = field(default_factory=list)


class Sender(threading.Thread):
    """Sends what some engines tell, one after the other, over a connection of its own."""

    def __init__(self, client: Client, engines: Sequence[Engine], *, rate: float, until_s: float) -> None:
        """
        Args:
            rate: spans a second; 0 for as many as go.
            until_s: when to end what the engines do, by the monotonic clock.
        """
        super().__init__(daemon=True)
        self.sent = Sent()
        self.failure: Exception | None = None
        self._client, self._engines = client, engines
        self._rate, self._until_s = rate, until_s

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error
        finally:
            self._client.close()

    def _run(self) -> None:
        due_s = time.monotonic()
        while time.monotonic() < self._until_s:
            for engine in self._engines:
                payload = engine.payload()
                if self._rate:
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    due_s = max(due_s, time.monotonic() - 1) + payload.spans / self._rate
                self._send(payload)
        for engine in self._engines:
            for payload in engine.last():
                self._send(payload)

    def _send(self, payload: Payload) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                self._client.send(payload.body)
                break
            except Later as later:
                self.sent.retries += 1
                time.sleep(pause_s if later.after_s is None else later.after_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        now_s = time.monotonic()
        self.sent.spans += payload.spans
        self.sent.requests += payload.requests
        self.sent.bytes += len(payload.body)
        self.sent.acknowledged += [(finding, now_s) for finding in payload.findings]
