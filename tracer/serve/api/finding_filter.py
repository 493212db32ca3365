"""Which findings an answer of the api is about: by rule, severity, connector and engine, in a range, known or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Query, Request

from kvtrail.tracer.serve.api.engine_filter import ChosenEngines
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.time_range import Moment, moments
from kvtrail.tracer.store import FindingFilter


@dataclass(frozen=True, slots=True)
class AskedFindings:
    """The findings that are asked for.

    Attributes:
        which: what selects them.
        resolver: the states of engines, and what is known, by which they were selected.
    """

    which: FindingFilter
    resolver: OutcomeResolver

    def in_range(self, *, length_ns: int) -> tuple[FindingFilter, int, int]:
        """The filter with the range that is asked for, by default the one of this length that ends now; and its ends."""
        since, until = moments(self.which.since_ns, self.which.until_ns, length_ns=length_ns)
        return replace(self.which, since_ns=since, until_ns=until), since, until


def _asked(
    request: Request,
    chosen: ChosenEngines,
    rule: str = "",
    severity: str = "",
    connector: str = "",
    known: Annotated[bool | None, Query(description="only the known ones, or only the others")] = None,
    since_ns: Moment = None,
    until_ns: Moment = None,
) -> AskedFindings:
    state = request.app.state
    which = FindingFilter(
        rule=rule,
        severity=severity,
        connector=connector,
        engines=chosen,
        since_ns=since_ns,
        until_ns=until_ns,
    )
    resolver = OutcomeResolver(state.process, state.reader)
    if known is not None:
        every = (each.place for each in state.reader.sightings())
        places = [place for place in every if resolver.known.of(place) is not None]
        which = replace(which, only=places) if known else replace(which, but=places)
    return AskedFindings(which, resolver)


Findings = Annotated[AskedFindings, Depends(_asked)]
"""The findings that a request of the api asks for."""
