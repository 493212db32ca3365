"""Changes at a moment, in sentences and rows: the change of each amount, and the groups of requests that explain it.

A `change` is one measure as `/api/changes` returns it, defined in tracer/savings/changes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import requests, text
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.dashboard.content.text import Link
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import cache, name
from kvtrail.tracer.model.words import significant

MEASURES = {
    "computed": "Prompt tokens computed", "asked": "Prompt tokens asked for", "local": "Tokens in vLLM's own cache",
    "loaded": "Tokens loaded", "failed": "Tokens of failed loads", "waited_s": "Seconds of waiting for loads",
    "postponed_s": "Seconds held up by 'ask me later'", "lookup_s": "Seconds in lookups", "preemptions": "Preemptions",
    "admissions": "Admissions",
}  # fmt: skip
"""Display names of the amounts; all are per minute."""
BY = {"prefix": "beginning of prompt", "cause": "why computed"}
"""Display names of dimensions that differ from their names."""
FIRST = "computed"
"""The measure that the others explain."""
EXPLAINS = 0.3
"""A group with this share of a change explains it; with a smaller share, traffic does not."""
SMALL = 0.05
"""A relative change below this share has no sentence."""
UNCHANGED = f"Nothing changed by more than {text.percent(SMALL)}."


def in_order(changes: Iterable[Row]) -> list[Row]:
    """The measures with a significant change: the computed tokens first, then the largest change."""
    return sorted(filter(_is_large, changes), key=lambda each: (each["measure"] != FIRST, -_times(each["whole"])))


def title(change: Row) -> str:
    """The changes, in sentences."""
    measure = str(change["measure"])
    return MEASURES.get(measure, measure)


def _is_large(change: Row) -> bool:
    before, after = change["whole"]["before"], change["whole"]["after"]
    return bool(abs(after - before) > SMALL * max(before, after))


def sentence(change: Row) -> str:
    """The change of a measure, and the share of it that traffic explains."""
    before, after = change["whole"]["before"], change["whole"]["after"]
    from_, to = (_amount(each, change["measure"]) for each in (before, after))
    said = f"**{title(change)}** went from {from_} to {to} a minute."
    if (traffic := change["of_traffic"]) is None or after == before:
        return said
    share = traffic / (after - before)
    if share < EXPLAINS:
        return f"{said} Traffic does not explain it: reuse changed."
    if share <= 1 - EXPLAINS:
        return f"{said} {text.percent(share)} of that is traffic, the rest a changed reuse."
    if not (before and after):
        return f"{said} That is traffic: nothing was asked for {'after' if before else 'before'}."
    return f"{said} That is traffic: reuse is what it was."


def explaining(changes: Iterable[Row]) -> list[tuple[Row, Row]]:
    """The changes with the groups that explain each: for each dimension the group with the largest share, if it is large, and
    the group with the largest opposite change, if it offsets much of that. A dimension with a single group explains
    nothing."""
    found = []
    for change in changes:
        by_dimension: dict[str, list[Row]] = {}
        for each in change["groups"]:
            by_dimension.setdefault(each["dimension"], []).append(each)
        for dimension, of in by_dimension.items():
            most, *others = sorted(of, key=lambda each: -each["share"])
            if (others or dimension == "cause") and most["share"] >= EXPLAINS:
                found += [(change, each) for each in (most, *others[-1:]) if abs(each["share"]) >= EXPLAINS]
    return found


def rows(found: Iterable[tuple[Row, Row]], names: Mapping[str, str]) -> list[Row]:
    """The groups that explain changes; `names` are those of engines and tenants."""
    return [
        {
            "What changed": title(change),
            "Grouped by": BY.get(group["dimension"], group["dimension"]),
            "Group": group_name(group, names),
            "Before": _amount(group["amount"]["before"], change["measure"]),
            "After": _amount(group["amount"]["after"], change["measure"]),
            "Share of the change": group["share"],
        }
        for change, group in found
    ]


def filters(group: Row) -> dict[str, str]:
    """The URL parameters with which the page of requests shows a group; none if its value is unknown."""
    by, value = group["dimension"], group["group"]
    if not value:
        return {}
    return {"where": f"{value.partition(':')[0]} > 0"} if by == "cause" else requests.of_group(by, value)


def group_name(group: Row, names: Mapping[str, str]) -> str:
    """A group's display name; `names` are those of engines and tenants."""
    by, value = group["dimension"], group["group"]
    if by == "tenant":
        return tenant_name(value, names)
    if by == "cause":
        cause, _, tier = value.partition(":")
        return f"{name(cause)}{f' ({cache(tier)})' if tier and cause != 'unknown' else ''}"
    return names.get(value, value) or "not known"


def rests_on(report: Row, *, now_ns: int) -> str:
    """The compared ranges, and how to read the numbers."""
    before, after = (
        f"{text.clock(each['since_ns'], now_ns=now_ns)[:-4]} to {text.clock(each['until_ns'], now_ns=now_ns)[:-4]}"
        for each in (report["before"], report["after"])
    )
    return (
        f"{before} against {after} UTC. Amounts are by the minute, over all requests. A share is what a group adds to the"
        " change of the whole; those of one kind of group add up to 100 %."
    )


def of_cause(cause: Row, after: TimeRange, around: TimeRange) -> Link:
    """The link of a likely cause: the requests of its engine, or else the causes of computed tokens."""
    if not cause["engine"]:
        return "savings", after.address
    ended = cause["kind"] in ("death", "contact lost", "end")
    return "requests", {**(around.address | {"status": "lost"} if ended else after.address), "on": cause["engine"]}


def _times(whole: Row) -> float:
    """The difference of the two as a share of the larger one."""
    return float(abs(whole["after"] - whole["before"]) / (max(whole["before"], whole["after"]) or 1))


def _amount(number: float, measure: str) -> str:
    if measure.endswith("_s"):
        return text.seconds(number)
    return text.short(number) if number >= 100 or number == int(number) else significant(number, 2)
