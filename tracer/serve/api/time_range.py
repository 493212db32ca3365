"""The range of time that an answer of the api is about."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import HTTPException, Query

MAX_NS = 2**62
"""The latest moment and the last number that may be asked for: what is added to it still fits into 64 bits."""
DAY_NS = 24 * 3600 * 10**9
Moment = Annotated[int | None, Query(ge=0, le=MAX_NS, description="Unix nanoseconds")]


def moments(since_ns: int | None, until_ns: int | None, *, length_ns: int = DAY_NS) -> tuple[int, int]:
    """The range asked for; by default, the one of this length that ends now."""
    until = time.time_ns() if until_ns is None else until_ns
    since = max(0, until - length_ns) if since_ns is None else since_ns
    if since >= until:
        raise HTTPException(422, f"since_ns {since} is not before until_ns {until}")
    return since, until
