"""Tokens that were computed although a cache had held them, in sentences and rows: the most expensive prefixes, and their
tenants and requests.

An `answer` is what `/api/waste` returns, defined in tracer/serve/api/waste.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.dashboard.content.text import Link
from kvtrail.tracer.model.words import count, some

CHOSEN = ("tenant", "prefix")
"""The filters that a click on a row sets, besides the page's filters: names in the URL and in the API."""


def sentence(answer: Row) -> str:
    """The number of recomputed tokens and their cost, in bold; then the data that the numbers omit."""
    whole = answer["whole"]
    if not whole["tokens"]:
        return "**Nothing that a cache had held was computed again**, by what is recorded."
    share = text.percent(whole["tokens"] / answer["computed"])
    cost = "" if whole["seconds"] is None else f": {text.seconds(whole['seconds'])} of prefill"
    said = (
        f"**{count(whole['tokens'])} of {some(answer['computed'], 'computed token')} ({share}) had been held by a cache"
        f" before{cost}**, in {some(whole['admissions'], 'admission')}."
    )
    if whole["unrated"]:
        left_out = "" if whole["seconds"] is None else f"The seconds leave out {some(whole['unrated'], 'token')}: "
        said += f" {left_out}Not every engine has shown how fast it prefills."
    if answer["covered_from_ns"] > answer["since_ns"]:
        at = text.clock(answer["covered_from_ns"], now_ns=answer["until_ns"]).partition(".")[0]
        said += f" There is too much for one answer: this is what was admitted from {at} UTC on."
    return said


def tenant_rows(answer: Row) -> list[Row]:
    """The tenants, the highest cost first."""
    whole = answer["whole"]["tokens"]
    return [{"Tenant": _tenant(each), **_numbers(each, whole)} for each in answer["by_tenant"]]


def narrowed_to(answer: Row, chosen: Mapping[str, str]) -> str:
    """A text for the filters that were set by clicks."""
    names = {each["tenant"]: _tenant(each) for each in answer["by_tenant"]}
    return f"Only {', '.join(f'{kind} {names.get(value, value)}' for kind, value in chosen.items())}: show all"


def prefix_rows(answer: Row) -> list[Row]:
    """The most expensive prefixes."""
    whole = answer["whole"]["tokens"]
    return [
        {
            "Prefix": each["prefix"],
            "Lost from token": each["start"],
            **_numbers(each, whole),
            "Latest": text.moment(each["last_ns"]),
        }
        for each in answer["by_prefix"]
    ]


def request_rows(answer: Row) -> list[Row]:
    """The requests that recomputed the most tokens."""
    names = answer["engine_names"]
    return [
        {
            "Request": each["request"],
            "Engine": names.get(each["engine"], each["engine"]),
            "Admitted": text.moment(each["last_ns"]),
            "Tokens": each["tokens"],
            "Prefill": each["seconds"],
            "Lost from token": each["start"],
            "Prefix": each["prefix"] or "not recorded",
        }
        for each in answer["requests"]
    ]


def narrowed(answer: Row, kind: str, given: Mapping[str, str]) -> list[Link]:
    """Links to this page, filtered by each group of a kind."""
    return [("savings", {**given, kind: str(each[kind])}) for each in answer[f"by_{kind}"]]


def _tenant(group: Row) -> str:
    value = str(group["tenant"])
    return tenant_name(value, {value: group["tenant_name"]} if group["tenant_name"] else {})


def _numbers(group: Row, whole: int) -> Row:
    """The contribution of a group."""
    share = group["tokens"] / whole if whole else None
    return {"Tokens": group["tokens"], "Share": share, "Prefill": group["seconds"], "Admissions": group["admissions"]}
