"""API route about waste: what was computed although a cache had held it, by tenant, model, engine, cause and prefix, and by
the requests that did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.cause_sums import causes_of
from kvtrail.tracer.savings.cells import interval_s
from kvtrail.tracer.savings.sums import prefill_rates
from kvtrail.tracer.savings.waste import WASTED, Waste, WasteFilter, WasteSum, grouped
from kvtrail.tracer.serve.api.engine_filter import ChosenEngines
from kvtrail.tracer.serve.api.time_range import Moment, moments
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import Reader

MOST_ROWS = 300_000
"""Admissions and causes that an answer sums up: the latest of the range."""
MOST_PREFIXES, MOST_REQUESTS, MOST_GROUPS = 25, 100, 10_000
SHOWN_GROUPS = 50


class WasteReport(BaseModel):
    """Prompt tokens of a range of time that were computed although a cache had held them, by the causes `evicted`, `reset`,
    `stranded`, `refused` and `failed-load`. Each group has its `tokens`, its `admissions`, the `seconds` of prefill at the
    measured rate of the engine that computed them (null where none is known), the tokens of engines without such a rate
    (`unrated`), and the latest admission (`last_ns`). Groups have most tokens first, and 50 of a kind at most."""

    since_ns: int
    until_ns: int
    """The range, in whole minutes, or whole hours if it is longer than six hours, as in `/api/efficiency`."""
    covered_from_ns: int
    """Later than `since_ns` where there were more than 300,000 rows: then only the latest are summed up."""
    computed: int
    """All computed tokens of the range and the chosen engines, for whatever cause, tenant or prefix."""
    whole: dict[str, Any]
    by_cause: list[dict[str, Any]]
    """By `cause` and `tier`, the cache that lost them."""
    by_tenant: list[dict[str, Any]]
    """By `tenant`, with its `tenant_name`, null if it has none (`kvtrail serve --tenants`)."""
    by_model: list[dict[str, Any]]
    by_engine: list[dict[str, Any]]
    by_prefix: list[dict[str, Any]]
    """The 25 most expensive prefixes: the hash of the first lost block (`prefix`), which begins at the token `start`."""
    requests: list[dict[str, Any]]
    """The 100 requests that computed most again: `engine`, `request`, and the `prefix` that they lost."""
    engine_names: dict[str, str]
    """The engines' names for people, by id."""


def add_routes(api: APIRouter, reader: Reader, tenants: TenantNames) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/waste", summary="What was computed although a cache had held it: by whom, and which requests")
    def waste(
        chosen: ChosenEngines, tenant: str = "", cause: str = "",
        prefix: Annotated[str, Query(description="as `by_prefix` names it")] = "",
        since_ns: Moment = None, until_ns: Moment = None,
    ) -> WasteReport:  # fmt: skip
        if cause and cause not in WASTED:
            raise HTTPException(422, f"{cause!r} is no cause of waste; there are: {', '.join(WASTED)}")
        since, until = moments(since_ns, until_ns)
        step_ns = interval_s(since, until) * 10**9
        since, until = since // step_ns * step_ns, -(-until // step_ns) * step_ns
        rows = reader.savings(since_ns=since, until_ns=until, stretch_s=(until - since) // 10**9)
        which = WasteFilter(
            since_ns=since, until_ns=until, tenant=tenant, cause=cause, engines=chosen,
            prefixes=[prefix] if prefix else None,
        )  # fmt: skip
        start = reader.wasted_from(which, limit=MOST_ROWS)
        known = reader.engines()
        answer = _Answer(reader, replace(which, since_ns=start), prefill_rates(rows))
        computed = sum(
            tokens
            for row in rows
            if chosen is None or row.engine in chosen
            for name, tokens in causes_of(row.measures).items()
            if name.partition(":")[0] not in REUSED
        )
        names = {name: each["name"] for name, each in known.items()}
        models = {name: each["model"] for name, each in known.items()}
        by = [By.ENGINE, By.TENANT, By.CAUSE, By.TIER]
        every = reader.wasted(by, answer.which, limit=MOST_GROUPS)

        def groups(labels: Sequence[str], *places: int) -> list[dict[str, Any]]:
            found = grouped(every, lambda of: tuple(of[at] for at in places), engine=0, rates=answer.rates)
            return _listed(labels, found)[:SHOWN_GROUPS]

        by_model = grouped(every, lambda of: (models.get(of[0], ""),), engine=0, rates=answer.rates)
        whole = grouped(every, lambda of: (), engine=0, rates=answer.rates).get((), Waste())
        return WasteReport(
            since_ns=since,
            until_ns=until,
            covered_from_ns=start,
            computed=computed,
            whole=asdict(whole),
            by_cause=groups(["cause", "tier"], 2, 3),
            by_tenant=[{**each, "tenant_name": tenants.of(each["tenant"])} for each in groups(["tenant"], 1)],
            by_model=_listed(["model"], by_model)[:SHOWN_GROUPS],
            by_engine=groups(["engine"], 0),
            by_prefix=answer.prefixes(),
            requests=answer.requests(),
            engine_names={name: names[name] for name in {each.of[0] for each in every} if name in names},
        )


class _Answer:
    """The parts of one answer that have queries of their own."""

    def __init__(self, reader: Reader, which: WasteFilter, rates: dict[str, float]) -> None:
        self._reader, self.which, self.rates = reader, which, rates

    def prefixes(self) -> list[dict[str, Any]]:
        """The most expensive prefixes. Those of unknown hashes are left out."""
        top = [each.of[0] for each in self._reader.wasted([By.PREFIX], self.which, limit=MOST_PREFIXES + 1)]
        top = [name for name in top if name][:MOST_PREFIXES]
        which = replace(self.which, prefixes=top)
        parts = self._reader.wasted([By.ENGINE, By.PREFIX], which, limit=MOST_GROUPS) if top else []
        return _listed(["prefix"], grouped(parts, lambda of: (of[1],), engine=0, rates=self.rates))

    def requests(self) -> list[dict[str, Any]]:
        """The requests that computed most again."""
        by = [By.ENGINE, By.REQUEST, By.PREFIX]
        found: list[WasteSum] = self._reader.wasted(by, self.which, limit=MOST_REQUESTS)
        return _listed(["engine", "request", "prefix"], grouped(found, lambda of: of, engine=0, rates=self.rates))


def _listed(labels: Sequence[str], found: dict[tuple[str, ...], Waste]) -> list[dict[str, Any]]:
    return [{**dict(zip(labels, of, strict=True)), **asdict(waste)} for of, waste in found.items()]
