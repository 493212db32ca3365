"""An admission of a request that ended, or whose engine ended, before its whole prompt was computed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.model.causes import Cause

_STAYS = (Cause.HELD, Cause.LOADED, Cause.FAILED_LOAD, Cause.NOT_COMPUTED)
"""Causes that hold regardless of how far the request was computed."""


def cut_short(
    entry: Mapping[str, Any], reached: int | None, ended: str, *, is_loading: bool = False
) -> Mapping[str, Any]:
    """An admission from `Breakdown.as_dict` of which no token from `reached` on was computed (None: unknown). `ended` is how
    the request, or its epoch, ended; `is_loading`: its load had not ended, and its end was never reported."""
    if reached is None:
        return {**entry, "reached": None, "ended": ended}
    if reached >= entry["total"]:
        return entry
    parts: list[Mapping[str, Any]] = []
    for part in entry["parts"]:
        end = part["start"] + part["tokens"]
        stays = part["cause"] in _STAYS and not (is_loading and part["cause"] == Cause.LOADED)
        begin = end if stays else min(max(reached, part["start"]), end)
        if begin > part["start"]:
            parts.append({**part, "tokens": begin - part["start"]})
        if begin == end:
            continue
        rest = {"cause": Cause.NOT_COMPUTED.value, "tier": "", "start": begin, "tokens": end - begin, "why": ended}
        if parts and parts[-1]["cause"] == Cause.NOT_COMPUTED and parts[-1].get("why") == ended:
            rest |= {"start": parts[-1]["start"], "tokens": parts.pop()["tokens"] + rest["tokens"]}
        parts.append(rest)
    return {**entry, "parts": parts, "reached": reached, "ended": ended}
