"""Finds a size of a connector's store that would have given many more hits, from its miss-ratio curve.

Sums and curves have the form of `/api/efficiency`, as mappings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MUCH = 0.1
"""The least gain in share of hits from another size that is reported."""
NEARLY = 0.95
"""The named size gives this share of the hits that any size could give: the last percents need most of the memory."""


def given(sums: Mapping[str, Any]) -> float | None:
    """The measured share of full blocks beyond vLLM's own cache that the store gave."""
    causes = sums["causes"]
    unaligned = sum(tokens for name, tokens in causes.items() if name.startswith(("unaligned:", "last-token:")))
    wanted = sums["asked"] - sums["local"] - unaligned
    return min(1.0, sums["taken"] / wanted) if wanted > 0 else None


def better(points: Sequence[Mapping[str, float]], given: float | None) -> Mapping[str, float] | None:
    """The point of the curve that would have given much more than the share that was `given`; None if none would."""
    if given is None or not points:
        return None
    point = next(each for each in points if each["share"] >= NEARLY * points[-1]["share"])
    return point if point["share"] - given >= MUCH else None
