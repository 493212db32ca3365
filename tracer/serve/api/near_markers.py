"""Which markers may explain that numbers changed at a moment: those near it, the best explanation first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.tracer.model.markers import Marker, MarkerKind

BEFORE_NS, AFTER_NS = 3 * 60 * 10**9, 60 * 10**9
"""How long before and after a change a marker may lie: sums begin with a minute."""
BEST_FIRST = (
    MarkerKind.DEATH, MarkerKind.CONTACT_LOST, MarkerKind.DEPLOY, MarkerKind.RESET, MarkerKind.RESTART, MarkerKind.END,
)  # fmt: skip
"""The kinds that may explain a change, those first that do so best where nothing else decides."""
_LAUNCHES = (MarkerKind.DEPLOY, MarkerKind.RESTART)


def near(markers: Iterable[Marker], *, since_ns: int, at_ns: int, after_ns: int = AFTER_NS) -> list[Marker]:
    """The markers near a change that began between these moments, or at both if they are the same. An end is left out where
    the launch that followed it in its place is there: it is a part of that."""
    begin_ns, end_ns = since_ns - BEFORE_NS, at_ns + after_ns
    found = [each for each in markers if each.kind in BEST_FIRST and begin_ns <= each.at_ns <= end_ns]
    launched = {each.engine for each in found if each.kind in _LAUNCHES}
    found = [each for each in found if each.kind is not MarkerKind.END or each.engine not in launched]
    return sorted(found, key=lambda each: (BEST_FIRST.index(each.kind), each.at_ns))
