"""Which requests an answer of the api is about, by conditions on their durations, tokens and tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Query

from kvtrail.tracer.model.conditions import NAMES, BadCondition, Condition, parsed

_ABOUT = (
    "conditions on the requests, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit; a cause means its"
    f" tokens. The names are {', '.join(f'`{name}`' for name in NAMES)}."
)


def _where(where: Annotated[str, Query(max_length=1000, description=_ABOUT)] = "") -> tuple[Condition, ...]:
    try:
        return parsed(where)
    except BadCondition as error:
        raise HTTPException(400, f"where: {error}") from error


Where = Annotated[tuple[Condition, ...], Depends(_where)]
"""The conditions of a request of the api. One that is none is answered with 400, and the reason."""
