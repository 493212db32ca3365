"""Exports findings as OpenTelemetry log records, which other backends show with the span.

The OpenTelemetry SDK provides the exporter, batching, retries and the variables `OTEL_*`.
"""

from __future__ import annotations

import logging
import os
import threading
from importlib.metadata import entry_points

from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT,
    OTEL_EXPORTER_OTLP_LOGS_PROTOCOL,
    OTEL_EXPORTER_OTLP_PROTOCOL,
)
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from kvtrail import __version__
from kvtrail.tracer.events import semconv
from kvtrail.tracer.model.findings import Finding

logger = logging.getLogger("kvtrail")

OTEL_LOGS_EXPORTER = "OTEL_LOGS_EXPORTER"
OTLP, NONE = "otlp", "none"
EXPORTERS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""Entry point names of the SDK's OTLP exporters, by protocol."""


class FindingLog:
    """Writes findings, from any thread. Only `close` waits for the receiver."""

    def __init__(self, exporter: LogRecordExporter) -> None:
        resource = Resource({SERVICE_NAME: semconv.SCOPE}).merge(OTELResourceDetector().detect())
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._logger = self._provider.get_logger(semconv.FINDINGS_SCOPE, __version__)

    @classmethod
    def from_environment(cls) -> FindingLog | None:
        """Create it from OpenTelemetry's variables; None if they name no receiver of logs."""
        named = os.environ.get(OTEL_LOGS_EXPORTER) or OTLP
        endpoint = os.environ.get(OTEL_EXPORTER_OTLP_LOGS_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT)
        if named == NONE or not endpoint:
            return None
        variable = OTEL_EXPORTER_OTLP_LOGS_PROTOCOL
        protocol = os.environ.get(variable) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"
        if named != OTLP or protocol not in EXPORTERS:
            logger.error("findings are not exported: kvtrail has no exporter %s with protocol %s", named, protocol)
            return None
        (exporter,) = entry_points(group="opentelemetry_logs_exporter", name=EXPORTERS[protocol])
        logger.info("findings are exported to %s", endpoint)
        return cls(exporter.load()())

    def write(self, finding: Finding, *, known: bool) -> None:
        """Export a finding, in the trace of its request and with the span id of its last witness in that trace."""
        trace_id = finding.trace_id or next((each.trace_id for each in reversed(finding.witness)), "")
        spans = [each.span_id for each in finding.witness if each.trace_id == trace_id]
        span = SpanContext(int(trace_id or "0", 16), int(spans[-1] if spans else "0", 16), is_remote=True)
        about = {
            semconv.ENGINE_ID: finding.engine,
            semconv.REQUEST_ID: finding.request,
            semconv.EXTERNAL_ID: finding.external,
            semconv.CONNECTOR: finding.connector,
            semconv.FINDING_RULE: finding.rule,
            semconv.FINDING_TITLE: finding.title,
            semconv.FINDING_SEVERITY: finding.severity.value,
            semconv.FINDING_HINT: finding.hint,
            semconv.FINDING_COUNT: finding.count,
            semconv.FINDING_HEALED: finding.healed,
            semconv.FINDING_KNOWN: known,
            semconv.EPOCH: finding.epoch,
        }
        is_healed = finding.healed == finding.count
        self._logger.emit(
            timestamp=finding.last_ns,
            context=set_span_in_context(NonRecordingSpan(span)),
            severity_number=SeverityNumber.WARN if is_healed else SeverityNumber.ERROR,
            severity_text="WARN" if is_healed else "ERROR",
            body=finding.explanation,
            attributes={attribute.key: value for attribute, value in about.items() if value != ""},
            event_name=semconv.FINDING_EVENT,
        )

    def close(self, *, within_s: float) -> None:
        """Send waiting records, for at most this time: the SDK may try for longer."""
        closing = threading.Thread(target=self._provider.shutdown, name="finding-log", daemon=True)
        closing.start()
        closing.join(within_s)
