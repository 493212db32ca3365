"""What changed at a moment, in sentences and rows: how much each amount did, and which group's requests explain it.

A `change` is one measure as `/api/changes` returns it, defined in tracer/savings/changes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.causes import tenant_name
from kvtrail.dashboard.content.text import Link
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import cache, name
from kvtrail.tracer.model.conditions import UNKNOWN
from kvtrail.tracer.model.tenants import OTHER, PLAIN
from kvtrail.tracer.model.words import significant

MEASURES = {
    "computed": "Prompt tokens computed", "asked": "Prompt tokens asked for", "local": "Tokens in vLLM's own cache",
    "loaded": "Tokens loaded", "failed": "Tokens of failed loads", "waited_s": "Seconds of waiting for loads",
    "postponed_s": "Seconds held up by 'ask me later'", "lookup_s": "Seconds in lookups", "preemptions": "Preemptions",
    "admissions": "Admissions",
}  # fmt: skip
"""What each amount is, for people; all are per minute."""
LABELS = {"prefix": "prompts that begin with"}
"""What stands before a group of a dimension, where that is not its name."""
BY = {"prefix": "beginning of prompt", "cause": "why computed"}
"""Dimensions that have another name for people."""
FILTERS = {"engine": "on", "model": "model"}
"""The dimensions that the page of requests has a filter of its own for, and its name in the address."""
FIRST = "computed"
"""The measure that the others explain."""
EXPLAINS = 0.3
"""A group with this share of a change is named in its sentence."""
SMALL = 0.05
"""A change by a smaller share of what there was is not worth a sentence."""
UNCHANGED = f"Nothing changed by more than {text.percent(SMALL)}."


def sentences(changes: Iterable[Row], engine_names: Mapping[str, str]) -> list[str]:
    """One for each amount that changed by more than a little, the computed tokens first."""
    return [sentence(each, engine_names) for each in in_order(changes) if is_large(each)]


def in_order(changes: Iterable[Row]) -> list[Row]:
    """The computed tokens first, then what changed most."""
    return sorted(changes, key=lambda each: (each["measure"] != FIRST, -_times(each["whole"])))


def title(change: Row) -> str:
    """What changed."""
    measure = str(change["measure"])
    return MEASURES.get(measure, measure)


def is_large(change: Row) -> bool:
    """Whether a measure changed by more than a little."""
    before, after = change["whole"]["before"], change["whole"]["after"]
    return bool(abs(after - before) > SMALL * max(before, after))


def sentence(change: Row, engine_names: Mapping[str, str]) -> str:
    """How a measure changed, how much of that is traffic, and which groups explain it."""
    before, after = change["whole"]["before"], change["whole"]["after"]
    from_, to = (_amount(each, change["measure"]) for each in (before, after))
    parts = [f"**{title(change)}** went from {from_} to {to} a minute."]
    if (traffic := change["of_traffic"]) is not None and after != before:
        share = traffic / (after - before)
        if share < EXPLAINS:
            parts.append("Traffic does not explain it: reuse changed.")
        elif share > 1 - EXPLAINS:
            kept = (
                "reuse is what it was"
                if before and after
                else f"nothing was asked for {'after' if before else 'before'}"
            )
            parts.append(f"That is traffic: {kept}.")
        else:
            parts.append(f"{text.percent(share)} of that is traffic, the rest a changed reuse.")
    explaining = [
        f"{group_name(each, engine_names)} {text.percent(each['share'])}" for each in _leaders(change["groups"])
    ]
    if explaining:
        parts.append(f"Of the change: {', '.join(explaining)}.")
    return " ".join(parts)


def rows(change: Row, engine_names: Mapping[str, str]) -> list[Row]:
    """The groups that explain a change, the largest shares first."""
    return [
        {
            "Grouped by": BY.get(each["dimension"], each["dimension"]),
            "Group": group_name(each, engine_names, dimension=False),
            "Before": each["amount"]["before"],
            "After": each["amount"]["after"],
            "Share of the change": each["share"] * 100,
        }
        for each in change["groups"]
    ]


def links(change: Row, after: TimeRange) -> list[Link]:
    """The requests of each group, in the second range."""
    return [("requests", {**after.address, **filters(each)}) for each in change["groups"]]


def filters(group: Row) -> dict[str, str]:
    """What the page of requests filters by to show a group, in its address."""
    by, value = group["dimension"], group["group"]
    if by in FILTERS:
        return {FILTERS[by]: value} if value else {}
    if by == "cause":
        return {"where": f"{value.partition(':')[0]} > 0"}
    return {"where": f"{by} = {value}"} if value else {}


def group_name(group: Row, engine_names: Mapping[str, str], *, dimension: bool = True) -> str:
    """A group, for people; `engine_names` also has the names of tenants."""
    by, value = group["dimension"], group["group"]
    if by == "engine":
        shown = engine_names.get(value, value)
    elif by == "tenant":
        shown = tenant_name(value, engine_names)
    elif by == "cause":
        cause, _, tier = value.partition(":")
        shown = f"{name(cause)}{f' ({cache(tier)})' if tier and cause != 'unknown' else ''}"
    else:
        shown = value or "not known"
    if not dimension:
        return shown
    if by == "prefix" and value == UNKNOWN:
        return "prompts with a beginning that is not recorded"
    if by == "tenant" and value in (PLAIN, OTHER) and value not in engine_names:  # no tenant
        return shown if value == OTHER else f"requests {shown}"
    return f"{LABELS.get(by, by)} {text.plain(shown)}"


def rests_on(report: Row, *, now_ns: int) -> str:
    """What was compared with what, and how the numbers are to be read."""
    before, after = (
        f"{text.clock(each['since_ns'], now_ns=now_ns)[:-4]} to {text.clock(each['until_ns'], now_ns=now_ns)[:-4]}"
        for each in (report["before"], report["after"])
    )
    return (
        f"{before} against {after} UTC. Amounts are by the minute, over all requests. A share is what a group adds to the"
        " change of the whole; those of one kind of group add up to 100 %."
    )


def of_cause(cause: Row, after: TimeRange, around: TimeRange) -> Link:
    """Where a likely cause leads: to the requests of its engine, or else to why tokens were computed."""
    if cause["engine"] and cause["kind"] in ("death", "contact lost", "end"):
        return "requests", {**around.address, "on": cause["engine"], "status": "lost"}
    if cause["engine"]:
        return "requests", {**after.address, "on": cause["engine"]}
    return "savings", after.address


def _leaders(groups: Iterable[Row]) -> list[Row]:
    """Of each dimension the group with the largest share, if that is much, and the one that went most the other way, if it
    outweighs much of that. Where there is only one, it explains nothing."""
    by_dimension: dict[str, list[Row]] = {}
    for each in groups:
        by_dimension.setdefault(each["dimension"], []).append(each)
    found = []
    for dimension, of in by_dimension.items():
        ordered = sorted(of, key=lambda each: -each["share"])
        if (len(of) > 1 or dimension == "cause") and ordered[0]["share"] >= EXPLAINS:
            found += [ordered[0], *(each for each in ordered[:0:-1][:1] if each["share"] <= -EXPLAINS)]
    return found


def _times(whole: Row) -> float:
    """By which share of the larger one the two differ."""
    return float(abs(whole["after"] - whole["before"]) / (max(whole["before"], whole["after"]) or 1))


def _amount(number: float, measure: str) -> str:
    if measure.endswith("_s"):
        return text.seconds(number)
    return text.short(number) if number >= 100 or number == int(number) else significant(number, 2)
