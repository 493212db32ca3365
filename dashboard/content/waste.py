"""What was computed although a cache had held it, in sentences and rows: the most expensive prefixes, who pays for them, and
which requests.

An `answer` is what `/api/waste` returns, defined in tracer/serve/api/waste.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.dashboard.content.link import Link
from kvtrail.tracer.model.cause_words import cache, name
from kvtrail.tracer.model.words import count, some

PREFIX = "prefix"
CHOSEN = ("tenant", "cause", PREFIX)
"""What a click on a row narrows the page down to, besides the page's filters; names in the address and of the API."""
KINDS = {
    "tenant": "By tenant", "model": "By model", "engine": "By engine", "cause": "By cause",
}  # fmt: skip
"""What waste is grouped by besides prefixes, each the name of a filter, and its heading."""
ADDRESS = {"engine": "on"}
"""Filters' names in the address: a request's page has an `engine` of its own there."""
NOT_RECORDED = "not recorded"


def sentence(answer: Row) -> str:
    """How much was computed again, and what that cost, in bold; then what the numbers leave out."""
    whole = answer["whole"]
    if not answer["computed"]:
        return "**Nothing is known of computed tokens in this range**: none has a recorded cause."
    if not whole["tokens"]:
        return "**Nothing that a cache had held was computed again**, by what is recorded."
    share = f" ({text.percent(whole['tokens'] / answer['computed'])})" if answer["computed"] else ""
    cost = "" if whole["seconds"] is None else f": {text.seconds(whole['seconds'])} of prefill"
    parts = [
        f"**{count(whole['tokens'])} of {some(answer['computed'], 'computed token')}{share} had been held by a cache before"
        f"{cost}**, in {some(whole['admissions'], 'admission')}."
    ]
    if whole["seconds"] is None:
        parts.append("In seconds: not measured, since no step shows how fast these engines prefill.")
    elif whole["unrated"]:
        parts.append(
            f"The seconds leave out {some(whole['unrated'], 'token')} of engines that have not shown how fast they prefill."
        )
    if answer["covered_from_ns"] > answer["since_ns"]:
        at = text.clock(answer["covered_from_ns"], now_ns=answer["until_ns"]).partition(".")[0]
        parts.append(f"There is too much for one answer: this is what was admitted from {at} UTC on.")
    return " ".join(parts)


def rows(answer: Row, kind: str) -> list[Row]:
    """The groups of one kind, the most tokens first."""
    whole = answer["whole"]["tokens"]
    return [
        {_heading(kind): label(answer, kind, each), **_numbers(each, whole, is_cause=kind == "cause")}
        for each in answer[f"by_{kind}"]
    ]


def label(answer: Row, kind: str, group: Row) -> str:
    """A group, for people."""
    value = str(group[kind])
    if kind == "tenant":
        return tenant_name(value, {value: group["tenant_name"]} if group["tenant_name"] else {})
    if kind == "engine":
        return str(answer["engine_names"].get(value, value))
    if kind == "cause":
        return f"{name(value)} ({cache(group['tier'])})" if group["tier"] else name(value)
    return value or "not known"


def narrowed_to(answer: Row, chosen: Mapping[str, str]) -> str:
    """What the page is narrowed down to, for people."""
    texts = []
    for kind, value in chosen.items():
        group = next((each for each in answer.get(f"by_{kind}", ()) if each[kind] == value), None)
        texts.append(f"{kind} {value if group is None or kind == PREFIX else label(answer, kind, group)}")
    return f"Only {', '.join(texts)}: show all"


def prefix_rows(answer: Row) -> list[Row]:
    """The most expensive prefixes."""
    whole = answer["whole"]["tokens"]
    return [
        {
            "Prefix": each["prefix"],
            "Lost from token": each["start"],
            **_numbers(each, whole),
            "Latest": datetime.fromtimestamp(each["last_ns"] / 1e9, UTC),
        }
        for each in answer["by_prefix"]
    ]


def request_rows(answer: Row) -> list[Row]:
    """The requests that computed most again."""
    names = answer["engine_names"]
    return [
        {
            "Request": each["request"],
            "Engine": names.get(each["engine"], each["engine"]),
            "Admitted": datetime.fromtimestamp(each["last_ns"] / 1e9, UTC),
            "Tokens": each["tokens"],
            "Prefill": each["seconds"],
            "Lost from token": each["start"],
            "Prefix": each["prefix"] or NOT_RECORDED,
        }
        for each in answer["requests"]
    ]


def narrowed(answer: Row, kind: str, given: Mapping[str, str]) -> list[Link]:
    """This page, narrowed down to each group of a kind."""
    return [("savings", {**given, ADDRESS.get(kind, kind): str(each[kind])}) for each in answer[f"by_{kind}"]]


def _numbers(group: Row, whole: int, *, is_cause: bool = False) -> Row:
    """What a group adds. An admission with several causes counts for one of them, so causes have no number of admissions."""
    found = {"Tokens": group["tokens"], "Share": group["tokens"] / whole * 100 if whole else None}
    return {**found, "Prefill": group["seconds"], **({} if is_cause else {"Admissions": group["admissions"]})}


def _heading(kind: str) -> str:
    return kind.capitalize()
