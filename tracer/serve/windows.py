"""The HTTP api's answers about windows of time: findings, efficiency, the fleet.

Every answer is as big as the window is fine, not as the store is big.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail import __version__
from kvtrail.tracer.detect.savings import Row, Worth, prefill_rates, step_of, worth
from kvtrail.tracer.model.findings import Severity
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store import Reader, Which

DAY_NS = 24 * 3600 * 10**9
STRETCHES = 60
"""So many stretches of time, or fewer, make up a trend."""
Moment = Annotated[int | None, Query(ge=0, le=2**63 - 1, description="Unix nanoseconds")]
Limit = Annotated[int, Query(ge=1, le=10_000)]


class Trend(BaseModel):
    """How many findings there are, by rule and time, and what can be asked for."""

    since_ns: int
    until_ns: int
    step_ns: int
    counts: list[dict[str, Any]]
    """For each `rule`, `severity` and stretch that begins at `at_ns`: the number of `findings` last seen in it."""
    choices: dict[str, list[str]]
    """The `rules`, `severities`, `connectors`, `engines` and `models` that have findings at all."""


class Efficiency(BaseModel):
    """What the offload did in a window; the numbers of each part are those of `Worth`, as `detect.savings` has them."""

    since_ns: int
    until_ns: int
    step_s: int
    """Length of a stretch of the trend, in seconds. The window is made of whole minutes, or of whole hours if it is longer
    than six."""
    worth: Worth
    by_epoch: dict[str, Worth]
    """By preemption epoch, `0` to `3`; `3` holds all later ones as well."""
    by_place: list[dict[str, Any]]
    """By `engine` and `connector`: their `worth`."""
    trend: list[dict[str, Any]]
    """By stretch, which begins at `at_ns`: its `worth`. Stretches in which nothing happened are absent."""
    choices: dict[str, list[str]]
    """The `engines` and `connectors` of the window, whatever was asked for."""


class Fleet(BaseModel):
    """Who is heard, and how well."""

    tracer: dict[str, Any]
    """`version`, `started_ns`, `last_received_ns`, `spans_stored` since then, `events_missing`, `open` requests."""
    engines: list[dict[str, Any]]
    """Each engine's `engine`, `model`, vLLM's `version`, `service`, `host`, `open` requests and `recorders`; one
    without recorders was not heard since the tracer started."""


def windows(pipeline: Pipeline, reader: Reader) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api", tags=["Reading"])

    def which(
        request: str = "", rule: str = "", severity: str = "", connector: str = "", engine: str = "", model: str = "",
        since_ns: Moment = None, until_ns: Moment = None,
    ) -> Which:  # fmt: skip
        engines = [name for name, said in reader.engines().items() if said["model"] == model] if model else None
        return Which(
            request=request, rule=rule, severity=severity, connector=connector, engine=engine, engines=engines,
            since_ns=since_ns, until_ns=until_ns,
        )  # fmt: skip

    @router.get("/findings", summary="Findings, latest first")
    def findings(
        request: str = "", rule: str = "", severity: str = "", connector: str = "", engine: str = "", model: str = "",
        since_ns: Moment = None, until_ns: Moment = None, limit: Limit = 100,
    ) -> list[dict[str, Any]]:  # fmt: skip
        asked = which(request, rule, severity, connector, engine, model, since_ns, until_ns)
        models = {name: said["model"] for name, said in reader.engines().items()}
        found = reader.findings(asked, limit=limit)
        return [{**finding, "model": models.get(finding["engine"], "")} for finding in found]

    @router.get("/findings/trend", summary="How many findings there are, by rule and time")
    def trend(
        rule: str = "", severity: str = "", connector: str = "", engine: str = "", model: str = "",
        since_ns: Moment = None, until_ns: Moment = None,
    ) -> Trend:  # fmt: skip
        since, until = _window(since_ns, until_ns)
        step_ns = max(1, -(-(until - since) // STRETCHES))
        asked = which("", rule, severity, connector, engine, model, since, until)
        known = reader.engines()
        places = reader.findings_places()
        models = sorted({known[e]["model"] for e in places["engines"] if e in known and known[e]["model"]})
        return Trend(
            since_ns=since,
            until_ns=until,
            step_ns=step_ns,
            counts=reader.findings_trend(asked, step_ns=step_ns),
            choices={**places, "severities": [*Severity], "models": models},
        )

    @router.get("/efficiency", summary="What the offload is worth, over a window of time")
    def efficiency(
        engine: str = "", connector: str = "", since_ns: Moment = None, until_ns: Moment = None
    ) -> Efficiency:
        since, until = _window(since_ns, until_ns)
        fine_s = step_of(since, until)
        stretch_s = max(fine_s, -(-(until - since) // 10**9 // STRETCHES // fine_s) * fine_s)
        rows = reader.efficiency(since_ns=since, until_ns=until, stretch_s=stretch_s)
        return told(rows, engine=engine, connector=connector, since_ns=since, until_ns=until, stretch_s=stretch_s)

    @router.get("/fleet", summary="The engines and their recorders: who is heard, and how well")
    def fleet() -> Fleet:
        recorders = [state.as_dict() for state in list(pipeline.recorders.values())]
        known = reader.engines()
        return Fleet(
            tracer={
                "version": __version__,
                "started_ns": pipeline.started_ns,
                "last_received_ns": pipeline.last_received_ns,
                "spans_stored": pipeline.spans_stored,
                "events_missing": pipeline.detector.missing,
                "open": sum(said["open"] for said in known.values()),
            },
            engines=[
                {"engine": name, **said, "recorders": [r for r in recorders if r["engine"] == name]}
                for name, said in sorted(known.items())
            ],
        )

    return router


def told(
    rows: Iterable[Row], *, engine: str, connector: str, since_ns: int, until_ns: int, stretch_s: int
) -> Efficiency:
    """The answer about the rows of a window; an empty engine or connector means all of them."""
    every = list(rows)
    rates = prefill_rates(every)  # an engine's rate is its own, whichever of its connectors is looked at
    chosen = [row for row in every if engine in ("", row.engine) and connector in ("", row.connector)]

    def parts(key: Callable[[Row], Any]) -> list[tuple[Any, Worth]]:
        held: dict[Any, list[Row]] = {}
        for row in chosen:
            held.setdefault(key(row), []).append(row)
        return [(name, worth(held[name], rates=rates)) for name in sorted(held)]

    return Efficiency(
        since_ns=since_ns,
        until_ns=until_ns,
        step_s=stretch_s,
        worth=worth(chosen, rates=rates),
        by_epoch={str(epoch): part for epoch, part in parts(lambda row: row.epoch)},
        by_place=[
            {"engine": e, "connector": c, "worth": asdict(part)}
            for (e, c), part in parts(lambda row: (row.engine, row.connector))
        ],
        trend=[
            {"at_ns": at_s * 10**9, "worth": asdict(part)}
            for at_s, part in parts(lambda row: row.at_s // stretch_s * stretch_s)
        ],
        choices={
            "engines": sorted({row.engine for row in every}),
            "connectors": sorted({row.connector for row in every if row.connector}),
        },
    )


def _window(since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
    """The window that is asked for: until now, and a day long, if nothing else is said."""
    until = time.time_ns() if until_ns is None else until_ns
    since = max(0, until - DAY_NS) if since_ns is None else since_ns
    if since >= until:
        raise HTTPException(422, f"since_ns {since} is not before until_ns {until}")
    return since, until
