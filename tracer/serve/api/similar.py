"""The requests that one would be compared with: of the same model, near in time, and about as long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.tracer.store import Reader

ENOUGH = 50
"""So many candidates are enough."""
MOST = 500
_SPANS_NS = (10**9, 10**10, 10**11, 10**12, 10**13, 10**14)
"""How far around its start to look: ever further, until there are enough."""


def alike(
    reader: Reader, account: Mapping[str, Any], *, engines: Sequence[str] | None, limit: int
) -> list[dict[str, Any]]:
    """Requests like this one among those of `engines`, the most alike first."""
    found: list[dict[str, Any]] = []
    at_ns = account["started_ns"]
    for span_ns in _SPANS_NS:
        found = reader.requests(
            engines=engines, since_ns=max(0, at_ns - span_ns), before_ns=at_ns + span_ns + 1, limit=MOST
        )
        if len(found) > ENOUGH:
            break
    others = [
        other for other in found if (other["engine"], other["request"]) != (account["engine"], account["request"])
    ]
    return sorted(others, key=lambda other: _distance(account, other))[:limit]


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How unlike two requests are: twice the prompt, ten times as far away, and another engine count alike."""
    apart_s: float = abs(one["started_ns"] - other["started_ns"]) / 1e9
    length, others = (account["prompt"] or account["total"] for account in (one, other))
    longer: float = abs(math.log2(length / others)) if length and others else 1.0
    return longer + math.log10(1 + apart_s) + float(one["engine"] != other["engine"])
