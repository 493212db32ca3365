"""Silences: what each covers, until when, why and by whom, in words and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from kvtrail.dashboard.client import Row
from kvtrail.tracer.model.silences import MATCHERS

LABELS = {
    "rule": "Rule", "engine": "Engine", "connector": "Connector", "vllm_version": "vLLM's version",
    "kvtrail_version": "kvtrail's version",
}  # fmt: skip
"""The matchers, as fields of a form."""
NAMES = {
    "rule": "rule", "engine": "engine", "connector": "connector", "vllm_version": "vLLM", "kvtrail_version": "kvtrail",
}  # fmt: skip
"""The matchers, as pages and terminals name them."""
LASTS = {
    "1 hour": timedelta(hours=1),
    "8 hours": timedelta(hours=8),
    "1 day": timedelta(days=1),
    "1 week": timedelta(weeks=1),
    "30 days": timedelta(days=30),
    "until it is ended": None,
}
"""How long a silence may be chosen to last."""


def covers(silence: Row, names: Mapping[str, str] | None = None) -> str:
    """What it covers: rule stale-lookup, engine llama-a. `names` are those of engines for people."""
    values = {**silence, "engine": (names or {}).get(silence["engine"], silence["engine"])}
    return ", ".join(f"{NAMES[name]} {values[name]}" for name in MATCHERS if values[name])


def moment(at_ns: int | None) -> str:
    """A moment in UTC, to the minute."""
    return "" if at_ns is None else f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M}"


def ends(silence: Row) -> str:
    """Until when it is active: until 2026-11-25 12:00 UTC."""
    return "until it is ended" if silence["ends_ns"] is None else f"until {moment(silence['ends_ns'])} UTC"


def state(silence: Row) -> str:
    """Whether it has an effect: active until …, or since when not."""
    return f"active {ends(silence)}" if silence["is_active"] else f"ended {moment(silence['ends_ns'])} UTC"


def sentence(silence: Row) -> str:
    """A silence of a finding, with its reason and its author."""
    return f"Silenced {ends(silence)} by {silence['by']}: {silence['why']}"


def asked(matchers: dict[str, str], *, lasts: timedelta | None, why: str, by: str, now_ns: int) -> Row:
    """What the API is asked for: a silence that begins now and lasts so long, or until it is ended."""
    ends_ns = None if lasts is None else now_ns + int(lasts.total_seconds() * 1e9)
    return {**matchers, "ends_ns": ends_ns, "why": why, "by": by}


def about(silence: Row) -> str:
    """Until when it is active, who made it and when, and whether what it covers still happens."""
    seen = (
        f"last seen {moment(silence['last_seen_ns'])} UTC" if silence["last_seen_ns"] else "no finding meets it so far"
    )
    state_ = state(silence)
    return f"{state_[0].upper()}{state_[1:]}; by {silence['by']}, {moment(silence['began_ns'])} UTC; {seen}."


def report(silence: Row) -> str:
    """What a change came to."""
    what = "Silenced" if silence["is_active"] else "No longer silenced"
    return f"{what}: {covers(silence)}. {about(silence)}"


def choices(
    rules: Iterable[Row], engines: Sequence[Row], found: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
    """For each matcher its values, and their texts; `found` has the connectors and engines with findings."""
    named = {engine["engine"]: str(engine["name"]) for engine in engines}
    named |= {engine: engine for engine in found.get("engines", ()) if engine not in named}

    def versions(field: str) -> dict[str, str]:
        return {version: version for version in sorted({engine[field] for engine in engines if engine[field]})}

    return {
        "rule": {rule["id"]: rule["id"] for rule in rules},
        "engine": named,
        "connector": {name: name for name in found.get("connectors", ())},
        "vllm_version": versions("version"),
        "kvtrail_version": versions("kvtrail"),
    }


def ended_rows(silences: Iterable[Row], names: Mapping[str, str]) -> list[Row]:
    """The silences that have ended, as rows."""
    return [
        {
            "Covered": covers(each, names),
            "Why": each["why"],
            "By": each["by"],
            "Began (UTC)": moment(each["began_ns"]),
            "Ended (UTC)": moment(each["ends_ns"]),
        }
        for each in silences
    ]


def lines(silences: Iterable[Row]) -> list[str]:
    """Silences for a terminal, one a line, with a line for the reason."""
    text = []
    for each in silences:
        seen = f"last seen {moment(each['last_seen_ns'])} UTC" if each["last_seen_ns"] else "never seen"
        text += [f"{each['id']}  {state(each)}: {covers(each)}; {seen}", f"    {each['by']}: {each['why']}"]
    return text
