"""Known bugs: one for each rule, which it proves, and those of copies, of which `kvtrail check` sees the bytes.

Whoever imports this package makes them known as `Faulty:<fault>:<connector>`, like the four in the wheel. Most are for the
OffloadConnector, some for vLLM's OffloadingConnector.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from faults import copies, lookups, plans, reports, transfers, variants
from kvtrail.connector import faults as of_wheel


def _of(*modules: ModuleType) -> dict[str, Any]:
    return {
        re.sub(r"\B(?=[A-Z])", "-", name).lower(): cls
        for module in modules
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        and issubclass(cls, of_wheel.Fault)
        and cls.__module__ == module.__name__
        and name[0] != "_"
    }


OF_BYTES = {"blocks-exchanged": "differs", "late-load": "early", "stray-write": "changed"}
"""Which of them `byte-drift` is proven by, and where it finds each."""
OF_COPIES = {"blocks-exchanged": of_wheel.BlocksExchanged} | _of(copies)
"""Faults that change bytes and no count, under their names: no rule about counts sees them."""
FAULTS = {name: of_wheel.FAULTS[name] for name in ("stale-lookup", "over-report", "under-report")} | _of(
    lookups, plans, transfers, reports
)
"""The faults under their names: `stale-lookup` is `StaleLookup`. The rule of that name finds it, or the one in its attribute
`rule`, and cites the incident."""
RULES = {name: str(getattr(cls, "rule", name)) for name, cls in FAULTS.items()}
"""The rule that finds each fault."""
OF_PAIRS = {
    "altered": "handoff-mismatch", "named alike": "ambiguous-handoff", "exchanged": "handoff-mismatch",
    "all loads fail": "peer-always-failing", "a report comes twice": "miscounted-readers", "twice": "duplicate-load",
    "short": "handoff-mismatch", "overdue": "stale-handoff", "a report is lost": "unacknowledged-handoff",
}  # fmt: skip
"""The rule that finds what goes wrong between two engines: a router's `Mistake`, or the network's
(`connector/simulate/scenario.py`). No connector has such a fault by itself."""
VARIANTS = _of(variants)
"""Other faults that the rule in their attribute `rule` finds, under their names."""

NATIVE = (
    "block-reuse", "callers-gave-up", "load-store-overlap", "null-block", "second-load", "stale-block",
    "stalled-transfers", "state-boundary", "store-under-load", "stray-completion", "stuck-load", "stuck-promotion",
    "unloaded-hit",
)  # fmt: skip
"""Faults of asynchronous transfers, for vLLM's own OffloadingConnector; the others are for ours."""
of_wheel.FAULTS.update(FAULTS | VARIANTS | OF_COPIES)
