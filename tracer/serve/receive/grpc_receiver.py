"""OTLP over gRPC, for engines on the sidecar's host. It has only the limits of gRPC's library.

The library reads a message, up to its size limit, before any check, on any number of connections. So the limit is low,
and the port listens on loopback by default (docs/limits.md).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from kvtrail.tracer.serve.access import Tls, TokenInterceptor
from kvtrail.tracer.serve.bind_address import address, bound
from kvtrail.tracer.serve.limits import MIB, RETRY_S
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.intake import ANNOUNCED, Busy, Intake, TooLarge
from kvtrail.tracer.serve.tokens import Access
from kvtrail.tracer.store import StoreError

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
MAX_MESSAGE_BYTES = MIB
"""Maximum size of a received message: a recorder sends at most half as much, unless one event is larger."""
CALLS_AT_ONCE = 16
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", CALLS_AT_ONCE),
    ("grpc.http2.bdp_probe", 0),  # with it, the received part of an oversized message stays in memory
    ("grpc.per_message_decompression", 0),  # a message of 1 MiB may decompress to 1 GiB
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
]


class GrpcReceiver:
    """The gRPC server, on its own threads."""

    def __init__(self, host: str, port: int, *, tokens: Access | None = None, tls: Tls | None = None) -> None:
        """Bind the port; 0 chooses a free one.

        Raises:
            PortTaken: it is in use or does not belong to this machine.
        """
        bound(host, port, "--grpc-port").close()  # the library's message is less specific
        self._server = grpc.server(
            ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="otlp-grpc"),
            maximum_concurrent_rpcs=CALLS_AT_ONCE,
            options=OPTIONS,
            interceptors=[] if tokens is None else [TokenInterceptor(tokens)],
        )
        where = address(host, port)
        self.port: int = (
            self._server.add_insecure_port(where)
            if tls is None
            else self._server.add_secure_port(where, tls.for_grpc())
        )

    def start(self, intake: Intake, metrics: Metrics) -> None:
        """Start to accept calls."""
        rejected = partial(metrics.count_rejected, "grpc")

        def export(message: bytes, context: grpc.ServicerContext) -> bytes:
            context.send_initial_metadata(tuple(ANNOUNCED.items()))
            try:
                return intake.take(message, _encoding_of(message), transport="grpc").SerializeToString()
            except Busy as error:
                rejected("busy")
                _ask_again(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            except TooLarge as error:
                rejected("too_large")
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"larger than max: {error}")
            except StoreError as error:
                rejected("store")
                _ask_again(context, grpc.StatusCode.UNAVAILABLE, str(error))
            except ValueError as error:
                rejected("malformed")
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("an aborted call goes on")

        methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}  # without a deserializer it receives bytes
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self._server.start()

    def stop(self, grace: float) -> None:
        """Finish received calls within `grace` seconds, and close all connections."""
        self._server.stop(grace=grace).wait()


def _ask_again(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> None:
    """End a call and ask for a retry as OTLP specifies: with a `RetryInfo` in the details. OpenTelemetry's Python SDK looks
    for it under its own name."""
    info, packed = RetryInfo(retry_delay=Duration(seconds=RETRY_S)), AnyMessage()
    packed.Pack(info)
    status = Status(code=code.value[0], message=why, details=[packed])
    context.set_trailing_metadata(
        (
            ("grpc-status-details-bin", status.SerializeToString()),
            ("google.rpc.retryinfo-bin", info.SerializeToString()),
        )
    )
    context.abort(code, why)


def _encoding_of(message: bytes) -> str:
    """The compression of a message, from its first bytes. gRPC's library does not decompress it, since it has no size limit
    for that. No uncompressed OTLP begins like this."""
    if message.startswith(b"\x1f\x8b"):
        return "gzip"
    is_zlib = len(message) > 1 and message[0] == 0x78 and int.from_bytes(message[:2], "big") % 31 == 0
    return "deflate" if is_zlib else ""
