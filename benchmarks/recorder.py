"""The recorder against OpenTelemetry's own SDK spans with a batch OTLP exporter: the same lookups, over the same wire.

Both sides send to a gRPC server in another process that takes everything and does nothing. Measured for each: time on the
caller's thread per event, and CPU in all per event until all has been sent: caller, exporting thread, export process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from types import SimpleNamespace
from typing import Any

import psutil
from rounds import print_ratio

from kvtrail.connector.recording.encoder import attribute
from kvtrail.connector.recording.exporter import ExportProcess
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.semconv import Kind

BURST = 500
REQUESTS = 40


def sink(port: int, ready: Event) -> None:
    """A server that acknowledges everything."""
    import grpc
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse().SerializeToString()
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    ready.set()
    server.wait_for_termination()


class Ours:
    """The recorder."""

    def __init__(self) -> None:
        self.exporter = ExportProcess()
        self.recorder = Recorder("bench", {}, self.exporter)
        self.source = attribute(semconv.CONNECTOR.key, "Bench") + attribute(semconv.ROLE.key, "scheduler")
        self.requests = [
            SimpleNamespace(request_id=f"cmpl-{n}-0-0123abcd", num_preemptions=0, trace_headers=None)
            for n in range(REQUESTS)
        ]

    def burst(self) -> None:
        recorder, source = self.recorder, self.source
        for n in range(BURST):
            request = self.requests[n % REQUESTS]
            at_ns = time.monotonic_ns()
            values = (700 + n, 336, 256, 0, False, False, None, None)
            recorder.record(Kind.LOOKUP.value, source, recorder.contexts.of(request), at_ns, at_ns, values)

    def flush(self) -> None:
        assert self.recorder.flush(30)
        assert self.recorder.dropped == 0

    def cpu_s(self) -> float:
        process = psutil.Process(self.exporter.pid).cpu_times()
        return time.process_time() + float(process.user + process.system)


class Sdk:
    """Plain SDK spans with the same attributes."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=65_536))
        self.tracer = self.provider.get_tracer(semconv.SCOPE)
        self.number = 0

    def burst(self) -> None:
        for n in range(BURST):
            at_ns = time.time_ns()
            self.number += 1
            attributes: dict[str, Any] = {
                semconv.CONNECTOR.key: "Bench",
                semconv.ROLE.key: "scheduler",
                semconv.SEQUENCE.key: self.number,
                semconv.REQUEST_ID.key: f"cmpl-{n % REQUESTS}-0-0123abcd",
                semconv.EXTERNAL_ID.key: f"cmpl-{n % REQUESTS}-0",
                semconv.EPOCH.key: 0,
                semconv.REQUEST_SEQUENCE.key: n,
                semconv.TOTAL.key: 700 + n,
                semconv.COMPUTED.key: 336,
                semconv.MATCHED.key: 256,
                semconv.RETURNED.key: 0,
                semconv.ASYNC.key: False,
                semconv.CACHED.key: False,
            }
            self.tracer.start_span(Kind.LOOKUP, attributes=attributes, start_time=at_ns).end(at_ns)

    def flush(self) -> None:
        assert self.provider.force_flush(30_000)

    def cpu_s(self) -> float:
        return time.process_time()


def measured(side: Ours | Sdk, bursts: int) -> tuple[float, float]:
    """Microseconds an event on the caller, and of CPU in all."""
    cpu, caller = side.cpu_s(), 0.0
    for _ in range(bursts):
        started = time.perf_counter()
        side.burst()
        caller += time.perf_counter() - started
        time.sleep(0.02)  # as an engine's step would: the exporting thread gets its turn
    side.flush()
    events = bursts * BURST
    return caller / events * 1e6, (side.cpu_s() - cpu) / events * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bursts", type=int, default=40, help=f"bursts of {BURST} events in a round")
    parser.add_argument("--port", type=int, default=24317)
    arguments = parser.parse_args()
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"http://127.0.0.1:{arguments.port}"
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    server = context.Process(target=sink, args=(arguments.port, ready), daemon=True)
    server.start()
    ready.wait(30)
    ours, sdk = Ours(), Sdk()
    measured(ours, 5), measured(sdk, 5)
    pairs = [(measured(ours, arguments.bursts), measured(sdk, arguments.bursts)) for _ in range(arguments.rounds)]
    names = ("recorder", "SDK")
    print_ratio("time on the caller", [o[0] for o, _ in pairs], [s[0] for _, s in pairs], "us/event", names)
    print_ratio("CPU in all", [o[1] for o, _ in pairs], [s[1] for _, s in pairs], "us/event", names)
    server.terminate()


if __name__ == "__main__":
    main()
