"""How long numbered transfers take, from the plan that begins one to the report that ends it.

It looks at the events in the order of their arrival and judges nothing; what came out of order or was lost is not
counted. Pure, like the accounts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvtrail.tracer.model.events import Event, LoadPlan, Plan, TransferEnd

MOST_OPEN = 100_000
"""Transfers remembered; beyond them the one that was planned first is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A numbered transfer of a plan, from its plan to its end, in nanoseconds; a load or a store."""

    is_load: bool
    lasted_ns: int


class Transfers:
    """The transfers under way, at most `MOST_OPEN` of them. They may outlast their request."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, str | None, int], Plan] = OrderedDict()

    def enter(self, event: Event) -> Transfer | None:
        """Enter one event; returns the transfer that it ended."""
        if isinstance(event, Plan) and event.transfer_id is not None:
            self._plans[event.engine, event.request, event.transfer_id] = event
            if len(self._plans) > MOST_OPEN:
                self._plans.popitem(last=False)
        elif isinstance(event, TransferEnd):
            plan = self._plans.pop((event.engine, event.request, event.transfer_id), None)
            if plan is not None:
                return Transfer(is_load=isinstance(plan, LoadPlan), lasted_ns=max(0, event.end_ns - plan.start_ns))
        return None
