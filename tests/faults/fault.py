"""What the known bugs of the tests have in common: more hooks than those of the wheel need."""

from __future__ import annotations

from typing import Any

from kvtrail.connector import faults
from kvtrail.connector.faults import Answer as Answer
from kvtrail.connector.known.offload.probe import OffloadProbe
from kvtrail.connector.known.probe import ProbeEvent, Seen

BLOCK_SIZE = 32
"""Tokens per KV block of the engines that faults are injected into."""


class Fault(faults.Fault):
    """A known bug. Without a hook overridden it does nothing.

    Attributes:
        probe_events: what the connector reports at the next step besides plans and evictions, with a `ReportingProbe`.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.probe_events: list[ProbeEvent] = []
        self.prepare()

    def prepare(self) -> None:
        """Set up the fault's own state."""

    def alter_plan(self, plan: Any, output: Any) -> None:
        """Change what the workers are to copy, or the `SchedulerOutput` that it belongs to."""

    def alter_report(self, report: Any) -> None:
        """Change what the workers report, before the scheduler sees it. The bare scheduler's worker calls it."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        plan = super().build_connector_meta(scheduler_output)
        self.alter_plan(plan, scheduler_output)
        return plan

    def take_probe_events(self) -> list[ProbeEvent]:
        events, self.probe_events = self.probe_events, []
        return events


class ReportingProbe(OffloadProbe):
    """For faults with evictions in steps without a store, or with `probe_events`: their `kvtrail_probe`."""

    def stepped(self, connector: Any, metadata: Any) -> Seen:
        seen = super().stepped(connector, metadata) or Seen(evicted=self.forgotten(connector))
        return seen._replace(events=connector.take_probe_events())
