"""Why the tokens of a request were reused or computed: the parts of its prompt, and what explains each.

An `entry` is what the api tells of one admission: its epoch, its tokens, when it was, and its parts in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette, text
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import sentence
from kvtrail.tracer.model.words import count, percent, some

REUSED = ("held", "loaded")
"""The causes of tokens that are not computed."""
AROUND_NS = 5 * 10**9
"""How much of *Live* is shown before and after an event."""
Link = tuple[str, Mapping[str, str]]
"""A page, and the query of its address."""


def name(cause: str) -> str:
    """A cause in words."""
    return cause.replace("-", " ")


def colour(cause: str, *, dark: bool) -> str:
    """The colour of a cause; grey for one that only a newer tracer knows."""
    return (palette.CAUSE[cause].colour if cause in palette.CAUSE else palette.GREY).on(dark=dark)


def strip(entry: Row, *, dark: bool) -> tuple[list[Entry], list[int]]:
    """The prompt as a bar: its parts in their order, and how long each is."""
    entries = [
        Entry(
            f"tokens {count(part['start'])} to {count(part['start'] + part['tokens'])}:"
            f" {sentence(part, at_ns=entry['at_ns'])}",
            colour(part["cause"], dark=dark),
        )
        for part in entry["parts"]
    ]
    return entries, [part["tokens"] for part in entry["parts"]]


def names(entry: Row, *, dark: bool) -> list[Entry]:
    """The causes of the bar, with their tokens."""
    return [
        Entry(
            name(cause),
            colour(cause, dark=dark),
            value=count(tokens),
            help=palette.CAUSE[cause].means if cause in palette.CAUSE else "",
        )
        for cause, tokens in _summed((part["cause"], part["tokens"]) for part in entry["parts"]).items()
    ]


def rows(entry: Row) -> list[Row]:
    """A row for each part."""
    return [
        {
            "From token": part["start"],
            "Tokens": part["tokens"],
            "Cause": name(part["cause"]),
            "Why": sentence(part, at_ns=entry["at_ns"]),
        }
        for part in entry["parts"]
    ]


def links(entry: Row, timeline: Row) -> list[Link]:
    """What explains each part: the step of this request that shows it, the other request that did it, or what happened at
    that moment; else the admission itself."""
    steps = {step["span_id"]: number for number, step in enumerate(timeline["steps"], 1)}
    engine = timeline["request"]["engine"]
    own = {"id": timeline["request"]["request"], "engine": engine}
    admission: Link = ("replay", {**own, "step": str(steps.get(entry["span_id"], 1))})
    return [_link(part, steps, own) or admission for part in entry["parts"]]


def _link(part: Row, steps: Mapping[str, int], own: Mapping[str, str]) -> Link | None:
    if number := steps.get(part.get("span_id", "")):
        return "replay", {**own, "step": str(number)}
    if part.get("request"):
        return "request", {"id": part["request"], "engine": own["engine"]}
    if at_ns := part.get("at_ns"):
        around = TimeRange(at_ns - AROUND_NS, at_ns + AROUND_NS)
        return "live", {**around.address, "engine": own["engine"]}
    return None


def headline(entry: Row) -> str:
    """What was computed, and the largest reasons for it, in a sentence."""
    sums = _summed((part["cause"], part["tokens"]) for part in entry["parts"] if part["cause"] not in REUSED)
    tokens = sum(sums.values())
    if not tokens:
        return "Nothing of it was computed."
    largest = sorted(sums.items(), key=lambda each: -each[1])[:2]
    means = [f"{percent(part / tokens)} {name(cause)}" for cause, part in largest]
    return f"{some(tokens, 'token')} of {count(entry['total'])} were computed: {', '.join(means)}."


# Sums over a range of time, as `/api/efficiency` has them under `causes`: tokens by `cause:tier`.


def computed(sums: Row) -> dict[str, int]:
    """The tokens that were computed, by cause, in the order of the causes."""
    tokens_of = ((measure.partition(":")[0], tokens) for measure, tokens in (sums.get("causes") or {}).items())
    return _summed((cause, tokens) for cause, tokens in tokens_of if cause not in REUSED and tokens)


def _summed(tokens_of: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Tokens by cause, in the order of the causes; what only a newer tracer knows comes last."""
    found: Counter[str] = Counter()
    for cause, tokens in tokens_of:
        found[cause] += tokens
    return {cause: found[cause] for cause in sorted(found, key=lambda each: [*palette.CAUSE, each].index(each))}


def time_rows(efficiency: Row) -> list[Row]:
    """The computed tokens of each interval by cause."""
    names = list(computed(efficiency["worth"]))
    return [
        {"cause": name(cause), "order": order, "tokens": tokens, "share": f"{count(tokens)} ({percent(tokens / whole)})",
         "at": interval["at_ns"] // 10**6, "to": interval["at_ns"] // 10**6 + efficiency["step_s"] * 1000,
         "time": text.clock(interval["at_ns"]).rpartition(".")[0]}
        for interval in efficiency["trend"]
        if (sums := computed(interval["worth"])) and (whole := sum(sums.values()))
        for order, cause in enumerate(names)
        if (tokens := sums.get(cause, 0))
    ]  # fmt: skip


def largest(sums: Row) -> str:
    """Why most of what was computed was computed, in a sentence; empty where nothing was recorded."""
    causes = computed(sums)
    tokens = sum(causes.values())
    if not tokens:
        return ""
    cause, part = max(causes.items(), key=lambda each: each[1])
    means = {
        "evicted": "had been held and evicted",
        "reset": "had been held until a cache was emptied",
        "new": "was never computed before",
        "unaligned": "was behind the last full block",
        "last-token": "was held, and computed again by rule",
        "stranded": "was held behind a hole",
        "pending": "was still being computed or stored",
        "refused": "was held, and not given or not taken",
        "failed-load": "was promised, and its load failed",
        "elsewhere": "another engine had computed",
        "unknown": "has no known cause",
    }
    age_s = sums.get("causes_age_s", {}).get(cause)
    before = f" {text.seconds(age_s)} before, on average" if age_s else ""
    return f"{percent(part / tokens)} of what was computed {means.get(cause, cause)}{before}."
