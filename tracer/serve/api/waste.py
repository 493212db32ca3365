"""API route about waste: tokens that were computed although a cache had held them, by tenant, prefix and request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.cause_sums import causes_of
from kvtrail.tracer.savings.minute_sums import interval_s
from kvtrail.tracer.savings.sums import prefill_rates
from kvtrail.tracer.savings.waste import Waste, WasteFilter, WasteSum, grouped
from kvtrail.tracer.serve.api.filters import ChosenEngines, Moment, moments
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store.reader import Reader

MOST_ROWS = 300_000
"""Maximum number of rows (admissions and causes) in an answer's sums: the latest of the range."""
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
    """Later than `since_ns` if there were more than 300,000 rows: then only the latest are included."""
    computed: int
    """All computed tokens of the range and the chosen engines, for any cause, tenant or prefix."""
    whole: dict[str, Any]
    by_tenant: list[dict[str, Any]]
    """By `tenant`, with its `tenant_name`, or null (`kvtrail serve --tenants`)."""
    by_prefix: list[dict[str, Any]]
    """The 25 most expensive prefixes: the hash of the first lost block (`prefix`), which begins at the token `start`."""
    requests: list[dict[str, Any]]
    """The 100 requests that recomputed the most tokens: `engine`, `request`, and the `prefix` that they lost."""
    engine_names: dict[str, str]
    """The engines' display names, by id."""


def add_routes(api: APIRouter, reader: Reader, tenants: TenantNames) -> None:
    """Add the route to the router of `/api`."""

    @api.get(
        "/waste", summary="Tokens that were computed although a cache had held them, by tenant, prefix and request"
    )
    def waste(
        chosen: ChosenEngines, tenant: str = "",
        prefix: Annotated[str, Query(description="a `prefix` of `by_prefix`")] = "",
        since_ns: Moment = None, until_ns: Moment = None,
    ) -> WasteReport:  # fmt: skip
        since, until = moments(since_ns, until_ns)
        step_ns = interval_s(since, until) * 10**9
        since, until = since // step_ns * step_ns, -(-until // step_ns) * step_ns
        rows = reader.savings(since_ns=since, until_ns=until, stretch_s=(until - since) // 10**9)
        which = WasteFilter(
            since_ns=since, until_ns=until, tenant=tenant, engines=chosen,
            prefixes=[prefix] if prefix else None,
        )  # fmt: skip
        start = reader.wasted_from(which, limit=MOST_ROWS)
        which, rates, known = replace(which, since_ns=start), prefill_rates(rows), reader.engines()
        computed = sum(
            tokens
            for row in rows
            if chosen is None or row.engine in chosen
            for name, tokens in causes_of(row.measures).items()
            if name.partition(":")[0] not in REUSED
        )

        def listed(
            sums: Sequence[WasteSum], labels: Sequence[str], of: Callable[[tuple[str, ...]], tuple[str, ...]]
        ) -> list[dict[str, Any]]:
            found = grouped(sums, of, engine=0, rates=rates)
            return [{**dict(zip(labels, group, strict=True)), **asdict(waste)} for group, waste in found.items()]

        every = reader.wasted([By.ENGINE, By.TENANT], which, limit=MOST_GROUPS)
        of_tenants = listed(every, ["tenant"], lambda of: (of[1],))[:SHOWN_GROUPS]
        # Prompts with unknown hashes have an unnamed prefix, which is left out.
        top = [name for each in reader.wasted([By.PREFIX], which, limit=MOST_PREFIXES + 1) if (name := each.of[0])]
        narrowed = replace(which, prefixes=top[:MOST_PREFIXES])
        prefixes = reader.wasted([By.ENGINE, By.PREFIX], narrowed, limit=MOST_GROUPS) if top else []
        requests = reader.wasted([By.ENGINE, By.REQUEST, By.PREFIX], which, limit=MOST_REQUESTS)
        return WasteReport(
            since_ns=since,
            until_ns=until,
            covered_from_ns=start,
            computed=computed,
            whole=next(iter(listed(every, [], lambda of: ())), asdict(Waste())),
            by_tenant=[{**each, "tenant_name": tenants.content.get(each["tenant"])} for each in of_tenants],
            by_prefix=listed(prefixes, ["prefix"], lambda of: of[1:]),
            requests=listed(requests, ["engine", "request", "prefix"], lambda of: of),
            engine_names={name: known[name]["name"] for name in {each.of[0] for each in every} if name in known},
        )
