"""Requests in groups, as `/api/latency/groups` returns them: rows, and the filters that select the requests of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.dashboard.content.latency import MEASURES
from kvtrail.tracer.model.words import duration, percent, some

DIMENSIONS = {
    "engine": "Engine",
    "model": "Model",
    "connector": "Connector",
    "tenant": "Tenant",
    "prefix": "Prompt prefix",
}
"""What requests are grouped by. A prefix is a hash, which stands for the first 64 tokens of a prompt."""
CHOICES = {name: f"By {text.lower()}" for name, text in DIMENSIONS.items()}
PERCENTILES = ("Half within", "90 % within", "99 % within")
SHARES = ("Hit rate", "vLLM's own")
_FILTERS = {"engine": "on", "model": "model"}
"""The dimensions for which the page of requests has a filter; the others are conditions."""


def rows(answer: Row) -> list[Row]:
    """A row for each group: percentiles in seconds, and shares of the tokens of its prompts in percent."""
    return [
        {
            DIMENSIONS[answer["by"]]: _name(answer["by"], group),
            "Requests": group["all_requests"],
            **dict(zip(PERCENTILES, map(_seconds, (group["p50_ns"], group["p90_ns"], group["p99_ns"])), strict=True)),
            "Tokens": group["asked"],
            **dict(zip(SHARES, (_share(group, group["loaded"]), _share(group, group["held"])), strict=True)),
        }
        for group in answer["groups"]
    ]


def filters(answer: Row, others: Mapping[str, str]) -> list[dict[str, str]]:
    """For each group what selects its requests, in the address of that page; `others` are the conditions in use."""
    by, where = answer["by"], others.get("where", "")
    found = []
    for group in answer["groups"]:
        if by in _FILTERS:
            found.append({_FILTERS[by]: group["name"]})
        else:
            own = f"{by} = {group['name']}"
            found.append({"where": f"{where} and {own}" if where and own not in where else own})
    return found


def note(answer: Row) -> str:
    """What the table shows, in a sentence."""
    more = ""
    if others := answer["others"]:
        count = others["all_requests"]
        more = f" {some(count, 'request')} of smaller groups {'is' if count == 1 else 'are'} not shown"
        if others["p50_ns"] is not None:
            more += f", half of them within {duration(others['p50_ns'])}"
        if others["hit_rate"] is not None:
            more += f"; their hit rate is {percent(others['hit_rate'])}"
        more += "."
    times = f"The times are “{MEASURES[answer['of']]}”, within 4.5 %."
    return f"{some(answer['requests'], 'request')}. {times} Click a row to see its requests.{more}"


def _name(by: str, group: Mapping[str, Any]) -> str:
    name, text = str(group["name"]), str(group["text"])
    if by == "tenant":
        return tenant_name(name, {name: text} if text != name else {})
    return text or "not known"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _share(group: Mapping[str, Any], tokens: int) -> float | None:
    return 100 * tokens / group["asked"] if group["asked"] else None
