"""Why tokens were computed, as the pages tell it."""

from __future__ import annotations

from typing import Any

from kvtrail.dashboard.content import causes, palette, trends
from kvtrail.tracer.model.causes import Cause

S = 10**9
ENTRY: dict[str, Any] = {
    "epoch": 0,
    "total": 640,
    "at_ns": 100 * S,
    "span_id": "a1",
    "connector": "OffloadConnector",
    "parts": [
        {"cause": "held", "tier": "gpu", "start": 0, "tokens": 128},
        {"cause": "loaded", "tier": "cpu", "start": 128, "tokens": 128},
        {"cause": "evicted", "tier": "cpu", "start": 256, "tokens": 256, "at_ns": 88 * S, "request": "chat-9"},
        {"cause": "reset", "tier": "cpu", "start": 512, "tokens": 64, "at_ns": 90 * S, "span_id": "e7"},
        {"cause": "failed-load", "tier": "cpu", "start": 576, "tokens": 32, "span_id": "b2"},
        {"cause": "unaligned", "tier": "", "start": 608, "tokens": 32},
    ],
}
TIMELINE = {
    "request": {"request": "chat-7", "engine": "e"},
    "steps": [{"span_id": "s"}, {"span_id": "a1"}, {"span_id": "b2"}],
}


def test_every_cause_has_a_colour_and_a_meaning_and_is_in_order() -> None:
    assert list(palette.CAUSE) == [cause.value for cause in Cause]


def test_the_bar_has_every_part_in_its_place() -> None:
    entries, amounts = causes.strip(ENTRY, dark=False)
    assert amounts == [128, 128, 256, 64, 32, 32]
    assert entries[2].name == "tokens 256 to 512: evicted from cpu 12.00 s before, to make room for chat-9"
    assert [(each.name, each.value) for each in causes.names(ENTRY, dark=False)] == [
        ("held", "128"), ("loaded", "128"), ("unaligned", "32"), ("failed load", "32"), ("evicted", "256"), ("reset", "64"),
    ]  # fmt: skip


def test_a_part_leads_to_what_explains_it() -> None:
    _, loaded, evicted, reset, failed, unaligned = causes.links(ENTRY, TIMELINE)
    own = {"id": "chat-7", "engine": "e"}
    assert loaded == unaligned == ("replay", {**own, "step": "2"}), "the admission, where nothing else explains it"
    assert failed == ("replay", {**own, "step": "3"})
    assert evicted == ("request", {"id": "chat-9", "engine": "e"})
    page, query = reset
    assert (page, query["engine"]) == ("live", "e")
    assert query["from"] < "1970-01-01T00:01:30" < query["to"]


def test_the_headline_names_the_largest_reasons() -> None:
    assert causes.headline(ENTRY) == "384 tokens of 640 were computed: 67 % evicted, 17 % reset."
    held = {**ENTRY, "parts": ENTRY["parts"][:2]}
    assert causes.headline(held) == "Nothing of it was computed."


def test_a_cause_of_tomorrow_is_shown_all_the_same() -> None:
    parts = [{"cause": "of-tomorrow", "tier": "", "start": 0, "tokens": 640}]
    entry = {**ENTRY, "parts": parts}
    assert [each.name for each in causes.names(entry, dark=True)] == ["of tomorrow"]
    assert causes.rows(entry)[0]["Why"] == "of-tomorrow"


def test_sums_say_why_most_was_computed() -> None:
    sums = {
        "causes": {"held:gpu": 900, "evicted:cpu": 60, "evicted:gpu": 1, "new:": 39},
        "causes_age_s": {"evicted": 240},
    }
    assert causes.computed(sums) == {"evicted": 61, "new": 39}
    assert causes.largest(sums) == (
        "61 % of what was computed had been held and evicted 4 min 00 s before, on average."
    )
    assert causes.largest({"causes": {"held:gpu": 900}}) == ""


def test_the_chart_has_the_causes_of_each_interval() -> None:
    worth = {"causes": {"evicted:cpu": 60, "new:": 40, "held:gpu": 9}}
    answer = {
        "since_ns": 0, "until_ns": 120 * S, "step_s": 60, "worth": worth,
        "trend": [
            {"at_ns": 0, "worth": {"causes": {"new:": 40}}},
            {"at_ns": 60 * S, "worth": {"causes": {"evicted:cpu": 60}}},
        ],
    }  # fmt: skip
    spec, rows = trends.apart(trends.causes_over_time(answer, dark=False))
    assert [(row["cause"], row["tokens"], row["at"]) for row in rows] == [("new", 40, 0), ("evicted", 60, 60_000)]
    assert spec["encoding"]["color"]["scale"]["domain"] == ["evicted", "new"]
