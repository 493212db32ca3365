"""The base of all faults: a class to mix in before a connector class, with hooks that a fault overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrail.connector.known.probe import ProbeEvent

if TYPE_CHECKING:
    from kvtrail.connector.offload import UntracedOffloadConnector as Connector
else:
    Connector = object  # the connector class comes next among the bases; most faults are for the OffloadConnector

Answer = tuple[int | None, bool]
"""Of a lookup: tokens beyond the computed ones, and whether they are loaded asynchronously."""
BLOCK_SIZE = 32
"""Tokens per KV block of the engines that faults are injected into."""


class Fault(Connector):
    """A known bug. Without a hook overridden it does nothing.

    Attributes:
        answered_from_memory: whether the last lookup was answered without looking; probes read it.
        reports_more: whether a step may have `probe_events`, or evictions without a store.
        probe_events: what the connector reports at the next step besides plans and evictions.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.probe_events: list[ProbeEvent] = []
        self.prepare()

    def prepare(self) -> None:
        """Set up the fault's own state."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        """The answer to a lookup, in place of the connector's."""
        return returned, is_async

    def alter_plan(self, plan: Any, output: Any) -> None:
        """Change what the workers are to copy, or the `SchedulerOutput` that it belongs to."""

    def alter_report(self, report: Any) -> None:
        """Change what the workers report, before the scheduler sees it. The bare scheduler's worker calls it."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Answer:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return self.alter_answer(request, num_computed_tokens, returned, is_async)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        plan = super().build_connector_meta(scheduler_output)
        self.alter_plan(plan, scheduler_output)
        return plan

    def take_probe_events(self) -> list[ProbeEvent]:
        events, self.probe_events = self.probe_events, []
        return events
