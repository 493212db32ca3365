"""What changed at a moment, in sentences and rows: how much each amount did, and the requests of which group explain it.

A `change` is one measure as `/api/changes` returns it, defined in tracer/savings/changes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import cache, name
from kvtrail.tracer.model.words import significant

Link = tuple[str, Mapping[str, str]]
"""A page, and the query of its address."""
MEASURES = {
    "computed": "Prompt tokens computed", "asked": "Prompt tokens asked for", "local": "Tokens in vLLM's own cache",
    "loaded": "Tokens loaded", "failed": "Tokens of failed loads", "waited_s": "Seconds of waiting for loads",
    "postponed_s": "Seconds held up by 'ask me later'", "lookup_s": "Seconds in lookups", "preemptions": "Preemptions",
    "admissions": "Admissions",
}  # fmt: skip
"""What each measure is, for people; all are per minute."""
FIRST = "computed"
"""The measure that the others explain."""
EXPLAINS = 0.3
"""A group with this share of a change is named in its sentence."""
SMALL = 0.05
"""A change by a smaller share of what there was is not worth a sentence."""


def sentences(changes: Iterable[Row], engine_names: Mapping[str, str]) -> list[str]:
    """One for each amount that changed by more than a little, the computed tokens first."""
    ordered = sorted(changes, key=lambda each: (each["measure"] != FIRST, -_times(each["whole"])))
    return [sentence(each, engine_names) for each in ordered if is_large(each)]


def is_large(change: Row) -> bool:
    """Whether a measure changed by more than a little."""
    before, after = change["whole"]["before"], change["whole"]["after"]
    return bool(abs(after - before) > SMALL * max(before, after))


def sentence(change: Row, engine_names: Mapping[str, str]) -> str:
    """How a measure changed, how much of that is traffic, and which groups explain it."""
    before, after = change["whole"]["before"], change["whole"]["after"]
    what = MEASURES.get(change["measure"], change["measure"])
    parts = [f"**{what}** went from {_amount(before)} to {_amount(after)} a minute{_ratio(before, after)}."]
    if (traffic := change["of_traffic"]) is not None and after != before:
        share = traffic / (after - before)
        if share < EXPLAINS:
            parts.append("Traffic does not explain it: reuse changed.")
        elif share > 1 - EXPLAINS:
            parts.append("That is traffic: reuse is what it was.")
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
            "Grouped by": each["dimension"],
            "Group": group_name(each, engine_names, dimension=False),
            "Before": each["amount"]["before"],
            "After": each["amount"]["after"],
            "Share of the change": each["share"] * 100,
        }
        for each in change["groups"]
    ]


def links(change: Row, after: TimeRange) -> list[Link]:
    """The requests of each group, in the second range."""
    filters = {"engine": "on", "model": "model", "connector": ""}
    return [
        ("requests", {**after.address, filters[each["dimension"]]: each["group"]})
        if filters.get(each["dimension"])
        else ("efficiency", {**after.address})
        for each in change["groups"]
    ]


def group_name(group: Row, engine_names: Mapping[str, str], *, dimension: bool = True) -> str:
    """A group, for people."""
    by, value = group["dimension"], group["group"]
    if by == "engine":
        shown = engine_names.get(value, value)
    elif by == "cause":
        cause, _, tier = value.partition(":")
        shown = f"{name(cause)}{f' ({cache(tier)})' if tier and cause != 'unknown' else ''}"
    else:
        shown = value or "not known"
    return f"{by} {text.plain(shown)}" if dimension else shown


def _leaders(groups: Iterable[Row]) -> list[Row]:
    """Of each dimension the group with the largest share, if that is much. Where there is only one, it explains nothing."""
    by_dimension: dict[str, list[Row]] = {}
    for each in groups:
        by_dimension.setdefault(each["dimension"], []).append(each)
    found = [
        max(of, key=lambda each: each["share"])
        for dimension, of in by_dimension.items()
        if len(of) > 1 or dimension == "cause"
    ]
    return [each for each in found if each["share"] >= EXPLAINS]


def _times(whole: Row) -> float:
    """By which share of the larger one the two differ."""
    return float(abs(whole["after"] - whole["before"]) / (max(whole["before"], whole["after"]) or 1))


def _ratio(before: float, after: float) -> str:
    if not before or not after or 0.5 < after / before < 2:
        return ""
    return f" ({significant(after / before)} times as many)"


def _amount(number: float) -> str:
    return text.short(number) if number >= 100 or number == int(number) else significant(number, 2)
