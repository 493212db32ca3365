"""The worker's side of the instrumentation: loads and stores of a step, and messages of other engines."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from kvtrail.connector.known.probe import Moved
from kvtrail.connector.tracing.instrumentation import Instrumentation, fail_open
from kvtrail.connector.tracing.plans import CALLERS
from kvtrail.tracer.events.semconv import Kind


class WorkerInstrumentation(Instrumentation):
    """Records the copies of one connector object."""

    @fail_open(Kind.READ, concerns_all=True)
    def on_report(self, connector: Any, report: Any) -> None:
        """Called after the connector has reported ended transfers: record messages of other engines."""
        if seen := self._ask("reported", connector, report, concerns=lambda: None):
            self._record_events(seen, monotonic_ns())

    @fail_open(Kind.LOAD, concerns_all=True)
    def on_copy(self, kind: Kind, connector: Any, start_ns: int) -> None:
        """Called after the connector has loaded or stored: record this step's copies, in the callers' traces that the
        scheduler's side passed on."""
        question = "loads" if kind is Kind.LOAD else "stores"
        moved = self._ask(question, connector, concerns=lambda: None)
        if not moved:
            return
        end_ns, contexts = monotonic_ns(), self._recorder.contexts
        for request_id, caller in getattr(connector._connector_metadata, CALLERS, {}).items():
            contexts.adopt(request_id, *caller)
        for each in moved:
            self._record_copy(each, kind, start_ns, end_ns)

    @fail_open(Kind.LOAD)
    def _record_copy(self, moved: Moved, kind: Kind, start_ns: int, end_ns: int) -> None:
        request_id, *values = moved
        context = self._recorder.contexts.of_id(request_id)
        self._recorder.record(kind, self.source, context, start_ns, end_ns, (*values, None))
