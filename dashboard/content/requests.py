"""Requests: rows, filters and sort orders; and groups of requests from `/api/latency/groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.tracer.model.words import some

ORDERS = {
    "latest": "latest first",
    "waiting": "longest wait for KV",
    "recomputed": "most tokens recomputed",
    "loads": "most loads",
    "findings": "most findings",
    "duration": "longest",
}
"""The API's sort orders, in words."""
ADDRESS = {"engine": "on"}
"""Filter names in the URL. Streamlit writes the next page's query over this page's before it leaves, so that after navigating
back a request's `engine` would filter the list."""
ENDS = {name: palette.label(name) for name in palette.OUTCOME if name != "running"}
"""Display names of the outcomes of ended requests."""
STATUS = {**palette.STATUS, **palette.OUTCOME}
"""The display words for a request: its status while it runs, then its outcome."""
LIVE_NS = 30 * 10**9
"""An open request without an event for this long counts as over: its duration ends with its latest event."""
DIMENSIONS = {
    "engine": "Engine",
    "model": "Model",
    "connector": "Connector",
    "tenant": "Tenant",
    "prefix": "Prompt prefix",
}
"""The dimensions by which requests are grouped. A prefix is a hash of the first 64 tokens of a prompt."""
CHOICES = {name: f"By {text.lower()}" for name, text in DIMENSIONS.items()}


def status(request: Row) -> str:
    """The request's status while it runs, then its outcome."""
    return str(request["status"] if request["outcome"] == "running" else request["outcome"])


def filters(chosen: Mapping[str, str]) -> dict[str, str]:
    """The choices as the API's filters: the one word for a request becomes a status or an outcome."""
    given = {name: value for name, value in chosen.items() if name != "status"}
    word = chosen.get("status")
    if word is None:
        return given
    return given | ({"outcome": word} if word in ENDS else {"status": word, "outcome": "running"})


def as_address(chosen: Mapping[str, str]) -> dict[str, str]:
    """The choices as parameters of the page's URL."""
    return {ADDRESS.get(name, name): value for name, value in chosen.items()}


def filters_of_groups(chosen: Mapping[str, str], search: str = "") -> tuple[dict[str, str], list[str]]:
    """The choices that filter groups and times, as API parameters; and the choices that do not: the verdict, the status of an
    open request, and the search."""
    ignored = [name for name in ("status", "verdict") if name in chosen and chosen[name] not in ENDS]
    applied = filters({name: value for name, value in chosen.items() if name not in ignored})
    return applied, ignored + ["search"] * bool(search)


def none_found(search: str, chosen: Mapping[str, str]) -> str:
    """What to do if no request is found."""
    if search:
        return f"No request has {text.plain(search)} in its id, or as its trace id, at any time."
    if chosen:
        return "No request of this range meets the filters. Choose a longer range, or remove a filter."
    return (
        "No request began in this range. Choose a longer one. If the tracer has no requests at all, the overview shows how to"
        " trace an engine."
    )


def request_rows(requests: Iterable[Row], *, now_ns: int) -> list[Row]:
    """The table's rows; times and numbers remain sortable."""
    return [
        {
            "Request": request["request"],
            "Status": [status(request)],
            "Verdict": [request["verdict"]],
            "Findings": request["findings"],
            "Started": text.moment(request["started_ns"]),
            "Duration": duration_ns(request, now_ns=now_ns) / 1e9,
            "Waited": request["waited_ns"] / 1e9,
            "Prompt": request["prompt"],
            "Loaded": request["loaded"],
            "Recomputed": request["recomputed"],
            "Preemptions": request["epoch"],
            "Engine": request["engine_name"],
            "Model": request["model"] or None,
            "Connector": request["connector"] or None,
        }
        for request in requests
    ]


def choices(engines: Iterable[Row]) -> dict[str, dict[str, str]]:
    """The values of each filter, and their display texts."""
    listed = sorted(engines, key=lambda engine: str(engine["name"]))
    return {
        "engine": {engine["engine"]: engine["name"] for engine in listed},
        **{
            name: {value: value for value in sorted({engine[name] for engine in listed if engine[name]})}
            for name in ("service", "model")
        },
    }


def duration_ns(request: Row, *, now_ns: int) -> int:
    """The duration of a request, or its duration so far; it ends with its latest event if it failed or stopped reporting."""
    end_ns = request["ended_ns"]
    if end_ns is None:
        is_over = request["status"] == "failed" or now_ns - request["last_ns"] > LIVE_NS
        end_ns = request["last_ns"] if is_over else now_ns
    return max(0, int(end_ns) - int(request["started_ns"]))


def group_rows(answer: Row) -> list[Row]:
    """A row for each group: percentiles in seconds, and shares of the tokens of its prompts."""
    return [
        {
            DIMENSIONS[answer["by"]]: _group_name(answer["by"], group),
            "Requests": group["all_requests"],
            **{name: None if (ns := group[f"{name}_ns"]) is None else ns / 1e9 for name in ("p50", "p90", "p99")},
            "Tokens": group["asked"],
            **{
                name: group[part] / group["asked"] if group["asked"] else None
                for name, part in (("Hit rate", "loaded"), ("vLLM's own", "held"))
            },
        }
        for group in answer["groups"]
    ]


def group_filters(answer: Row, others: Mapping[str, str]) -> list[dict[str, str]]:
    """For each group the URL parameters that select its requests; `others` are the conditions in use."""
    where = others.get("where", "")
    found = [of_group(answer["by"], group["name"]) for group in answer["groups"]]
    return [
        {"where": f"{where} and {own['where']}"} if where and own.get("where", where) not in where else own
        for own in found
    ]


def of_group(by: str, value: str) -> dict[str, str]:
    """The URL parameters that select the requests of a group: a filter of the page, or a condition."""
    return {ADDRESS.get(by, by): value} if by in ("engine", "model") else {"where": f"{by} = {value}"}


def group_note(answer: Row, time: str) -> str:
    """A sentence about the table's contents; `time` names the measure of its percentiles."""
    hidden = answer["requests"] - sum(group["all_requests"] for group in answer["groups"])
    more = f" Not shown: {some(hidden, 'request')} of smaller groups." if hidden > 0 else ""
    times = f"The times are “{time}”, within 4.5 %."
    return f"{some(answer['requests'], 'request')}. {times} Click a row to see its requests.{more}"


def _group_name(by: str, group: Mapping[str, Any]) -> str:
    name, text = str(group["name"]), str(group["text"])
    if by == "tenant":
        return tenant_name(name, {name: text} if text != name else {})
    return text or "not known"
