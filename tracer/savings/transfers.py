"""How long numbered transfers last."""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import LoadPlan, Plan, TransferEnd

MAX_OPEN = 100_000
"""Transfers that are timed at a time; beyond that the longest open one is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTransfer:
    """How long a numbered load or store lasted, from its plan to its end, in nanoseconds."""

    is_load: bool
    lasted_ns: int


class TransferTimer:
    """Times numbered transfers. It pairs events itself, since transfers may outlast their request and its account. Transfers
    with events that come out of order, or are lost, are not counted."""

    def __init__(self) -> None:
        self._plans = BoundedDict[tuple[str, str | None, int], Plan](MAX_OPEN)

    def begin(self, plan: Plan) -> None:
        """Note a transfer, if it has a number."""
        if plan.transfer_id is not None:
            self._plans[plan.engine, plan.request, plan.transfer_id] = plan

    def end(self, event: TransferEnd) -> TimedTransfer | None:
        """The transfer that has ended; None if its plan is not known."""
        plan = self._plans.pop((event.engine, event.request, event.transfer_id), None)
        if plan is None:
            return None
        return TimedTransfer(is_load=isinstance(plan, LoadPlan), lasted_ns=max(0, event.end_ns - plan.start_ns))
