"""Known bugs, to be injected into a connector: each rule is proven by the bug that it finds, and `kvtrail check` by those of
copies. For tests and demos only.

In comes a connector class and the name of a fault, `Faulty:<fault>:<connector>`, so that no setting can switch one on by
accident; out comes the class with the fault in front of it. Most are for the OffloadConnector, some for vLLM's
OffloadingConnector.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from kvtrail.connector.faults import copies, lookups, plans, reports, transfers, variants
from kvtrail.connector.faults.base import Fault


def _of(*modules: ModuleType) -> dict[str, Any]:
    return {
        re.sub(r"\B(?=[A-Z])", "-", name).lower(): cls
        for module in modules
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, Fault) and cls.__module__ == module.__name__ and name[0] != "_"
    }


FAULTS = _of(lookups, plans, transfers, reports)
"""The faults under their names: `stale-lookup` is `StaleLookup`. The rule of that name finds it, and cites the incident."""
OF_PAIRS = {
    "altered-handoff": "altered", "ambiguous-handoff": "named alike", "crossed-handoff": "exchanged",
    "dead-pair": "all loads fail", "miscounted-readers": "a report comes twice", "second-handoff": "twice",
    "short-handoff": "short", "stale-handoff": "overdue", "unacknowledged-handoff": "a report is lost",
}  # fmt: skip
"""What goes wrong between two engines, by the rule that finds it: a router's `Mistake`, or the network's
(`simulate/pairs/pair_scenario.py`). No connector has such a fault by itself."""
VARIANTS = _of(variants)
"""Other faults that the rule in their attribute `rule` finds, under their names."""
OF_COPIES = _of(copies)
"""Faults that change bytes and no count, under their names: no rule about counts sees them."""
BY_RULE = {"byte-drift": "blocks-exchanged", "byte-early": "late-load", "byte-rot": "stray-write"}
"""Which of them the rules about bytes are proven by."""

NATIVE = (
    "block-reuse", "callers-gave-up", "load-store-overlap", "null-block", "second-load", "stale-block",
    "stalled-transfers", "state-boundary", "store-under-load", "stray-completion", "stuck-load", "stuck-promotion",
    "unloaded-hit",
)  # fmt: skip
"""Faults of asynchronous transfers, for vLLM's own OffloadingConnector; the others are for ours."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    return type(cls.__name__, (fault, cls), {"__module__": "kvtrail.connector", "__doc__": fault.__doc__})
