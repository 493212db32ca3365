"""Which requests an answer of the api is about: by engine, outcome, and conditions on durations and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Query, Request

from kvtrail.tracer.model.conditions import NAMES, BadCondition, Condition, TooLarge, parsed
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.serve.api.engine_filter import ChosenEngines
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver

_ABOUT = (
    "conditions on the requests, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit; a cause means its"
    f" tokens. The names are {', '.join(f'`{name}`' for name in NAMES)}."
)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Selects requests.

    Attributes:
        engines: of any of these engines; None means any.
        where: conditions that are all met.
    """

    engines: list[str] | None
    where: tuple[Condition, ...]


def _filter(
    request: Request,
    chosen: ChosenEngines,
    outcome: Annotated[Outcome | None, Query(description="how they ended")] = None,
    where: Annotated[str, Query(max_length=1000, description=_ABOUT)] = "",
) -> RequestFilter:
    try:
        conditions = parsed(where)
    except TooLarge as error:
        raise HTTPException(422, f"where: {error}") from error
    except BadCondition as error:
        raise HTTPException(400, f"where: {error}") from error
    if outcome is not None:
        state = request.app.state
        conditions += (OutcomeResolver(state.process, state.reader).condition(outcome),)
    return RequestFilter(chosen, conditions)


Where = Annotated[RequestFilter, Depends(_filter)]
"""The filter of a request of the api. Conditions that are none are answered with 400, a number beyond 64 bits with 422, and
the reason."""
