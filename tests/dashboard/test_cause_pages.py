"""Why tokens were computed, as the pages show it."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from kvtrail.dashboard import palette
from kvtrail.dashboard.content import causes, charts
from kvtrail.dashboard.content.request import waterfall
from kvtrail.tracer.model.cause_words import headline
from kvtrail.tracer.model.causes import Cause, NotRecorded

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


def hrefs(html: str) -> list[str]:
    """The addresses of the parts of the bar, and of the lines below."""
    return [unescape(each) for each in re.findall('href="([^"]*)"', html)]


def test_every_part_has_its_place_in_the_bar_and_its_line() -> None:
    html = waterfall.waterfall(ENTRY, TIMELINE, dark=False)
    assert re.findall(r"flex-grow: (\d+)", html) == ["128", "128", "256", "64", "32", "32"]
    assert html.count("evicted from cpu 12.00 s before, to make room for chat-9") == 3, "title, name and line"


def test_a_part_leads_to_what_explains_it() -> None:
    links = waterfall.links(ENTRY["parts"], ENTRY, TIMELINE)
    _, loaded, evicted, reset, failed, unaligned = links
    own = {"id": "chat-7", "engine": "e"}
    admission = ("request", {**own, "tab": "replay", "step": "2"})
    assert loaded == unaligned == admission, "where nothing else explains it"
    assert failed == ("request", {**own, "tab": "replay", "step": "3"})
    assert evicted == ("request", {"id": "chat-9", "engine": "e"})
    page, query = reset
    assert (page, query["view"], query["on"]) == ("requests", "lanes", "e")
    assert query["from"] < "1970-01-01T00:01:30" < query["to"]
    addresses = hrefs(waterfall.waterfall(ENTRY, TIMELINE, dark=False))
    assert addresses[:6] == addresses[6:]
    assert addresses[2] == "request?id=chat-9&engine=e"


def test_what_many_did_leads_to_the_time_in_which_they_did_it() -> None:
    run = {"cause": "evicted", "tier": "cpu", "start": 0, "tokens": 64, "request": "chat-9", "others": 2,
           "at_ns": 50 * S, "to_ns": 80 * S}  # fmt: skip
    ((page, query),) = waterfall.links([run], ENTRY, TIMELINE)
    assert (page, query["from"] < "1970-01-01T00:00:50", query["to"] > "1970-01-01T00:01:20") == (
        "requests",
        True,
        True,
    )


def test_what_another_engine_computed_leads_there() -> None:
    run = {"cause": "elsewhere", "tier": "", "start": 0, "tokens": 64, "engine": "other", "at_ns": 50 * S}
    ((_, query),) = waterfall.links([run], ENTRY, TIMELINE)
    assert query["on"] == "other"


def test_of_very_many_parts_the_longest_have_a_line() -> None:
    parts = [
        {"cause": ("stranded", "new")[number % 2], "tier": "", "start": 16 * number, "tokens": 16 + number % 3}
        for number in range(500)
    ]
    html = waterfall.waterfall({**ENTRY, "parts": parts, "total": 8_499}, TIMELINE, dark=False)
    assert html.count("flex-grow") == 500
    assert len(hrefs(html)) == 500 + waterfall.MAX_ROWS
    assert "and 400 shorter parts" in html


def test_names_from_outside_are_text() -> None:
    parts = [{"cause": "evicted", "tier": "<b>", "start": 0, "tokens": 16, "request": 'x"><script>'}]
    html = waterfall.waterfall({**ENTRY, "parts": parts}, TIMELINE, dark=False)
    assert "<script" not in html
    assert "<b>," not in html


def test_the_headline_names_the_largest_reasons() -> None:
    assert headline(ENTRY) == "384 tokens of 640 were computed: 67 % evicted, 17 % reset."
    held = {**ENTRY, "parts": ENTRY["parts"][:2]}
    assert headline(held) == "None of it was computed."
    one = {"parts": [{"cause": "unaligned", "tier": "", "start": 599, "tokens": 1}], "total": 600}
    assert headline(one) == "1 token of 600 was computed: 100 % unaligned."


def test_a_setting_is_named_without_the_marks_of_markdown() -> None:
    """The bar is HTML, which showed them, after "unknown: not known"."""
    parts = [{"cause": "unknown", "tier": "", "start": 0, "tokens": 640, "why": NotRecorded.BLOCK_HASHES.value}]
    html = waterfall.waterfall({**ENTRY, "parts": parts}, TIMELINE, dark=False)
    assert "block_hashes is off" in html
    assert "`" not in html
    assert "unknown: not known" not in html


def test_a_cause_of_tomorrow_is_shown_all_the_same() -> None:
    parts = [{"cause": "of-tomorrow", "tier": "", "start": 0, "tokens": 640}]
    entry = {**ENTRY, "parts": parts}
    assert "<span>of tomorrow</span>" in waterfall.waterfall(entry, TIMELINE, dark=False)


def test_sums_say_why_most_was_computed() -> None:
    sums = {
        "causes": {"held:gpu": 900, "evicted:cpu": 60, "evicted:gpu": 1, "new:": 39},
        "causes_age_s": {"evicted": 240},
    }
    assert causes.computed(sums) == {"evicted": 61, "new": 39}
    assert causes.largest(sums) == (
        "60 % of what was computed had been held and evicted 4 min 00 s before, on average, from cpu."
    )
    assert causes.largest({"causes": {"held:gpu": 900}}) == ""


def test_sums_say_why_the_store_did_not_have_what_vllm_lost() -> None:
    sums = {
        "causes": {"evicted:gpu": 80, "reset:gpu": 5, "new:": 15},
        "unstored": {"evicted:full": 60, "evicted:unasked": 16, "evicted:failed": 4, "reset:failed": 5},
    }
    assert causes.largest(sums) == (
        "80 % of what was computed had been held and evicted, from vLLM's cache. Of that the connector's store never"
        " had 75 %:"
        " there was no room for it; 20 %: the connector did not ask for it."
    )


def test_the_chart_has_the_causes_of_each_interval() -> None:
    worth = {"causes": {"evicted:cpu": 60, "new:": 40, "held:gpu": 9}}
    answer = {
        "since_ns": 0, "until_ns": 120 * S, "step_s": 60, "worth": worth,
        "trend": [
            {"at_ns": 0, "worth": {"causes": {"new:": 40}}},
            {"at_ns": 60 * S, "worth": {"causes": {"evicted:cpu": 60}}},
        ],
    }  # fmt: skip
    spec, rows = charts.spec_and_rows(charts.causes_over_time(answer, dark=False))
    assert [(row["cause"], row["tokens"], row["at"]) for row in rows] == [("new", 40, 0), ("evicted", 60, 60_000)]
    assert spec["encoding"]["color"]["scale"]["domain"] == ["evicted", "new"]


SAVINGS: dict[str, Any] = {
    "engine_names": {"e1": "pod-1"},
    "by_place": [
        {"engine": "e1", "connector": "C", "worth": {"causes": {"held:gpu": 900, "evicted:cpu": 60, "new:": 40}}},
        {"engine": "e2", "connector": "C", "worth": {"causes": {"new:": 400}}},
        {"engine": "e3", "connector": "D", "worth": {"causes": {}}},
    ],
    "by_tenant": {"5a17c0ffee5a17c0": {"evicted": 60, "held": 900}, "plain": {"new": 440}},
}


def test_causes_are_split_by_engine_connector_model_and_tenant() -> None:
    assert causes.groups(SAVINGS, {"e1": "m", "e2": "m"}) == {
        "engine": {"e2": {"new": 400}, "pod-1": {"evicted": 60, "new": 40}},
        "connector": {"C": {"evicted": 60, "new": 440}},
        "model": {"m": {"evicted": 60, "new": 440}},
        "tenant": {"without salt or adapter": {"new": 440}, "5a17c0ff": {"evicted": 60}},
    }
    assert "tenant" not in causes.groups({**SAVINGS, "by_tenant": {}}, {})


def test_tenants_of_one_name_are_one_group() -> None:
    by_tenant = {**SAVINGS["by_tenant"], "b10eb10eb10eb10e": {"evicted": 5}, "0" * 16: {"new": 1}}
    names = {"5a17c0ffee5a17c0": "Acme", "b10eb10eb10eb10e": "Acme", "plain": "internal"}
    assert causes.groups({**SAVINGS, "by_tenant": by_tenant, "tenant_names": names}, {})["tenant"] == {
        "internal": {"new": 440}, "Acme": {"evicted": 65}, "00000000": {"new": 1},
    }  # fmt: skip


def test_misses_are_split_by_kv_cache_group_where_there_are_several() -> None:
    by_group = {"0:full_attention": {"evicted": 20}, "1:sliding_window": {"evicted": 60, "uncached": 40}}
    assert causes.groups({**SAVINGS, "by_group": by_group}, {})["KV cache group"] == {
        "1 (sliding window)": {"evicted": 60, "uncached": 40},
        "0 (full attention)": {"evicted": 20},
    }
    assert "KV cache group" not in causes.groups(SAVINGS, {})


def test_of_many_groups_those_with_most_tokens_have_a_bar() -> None:
    places = [
        {"engine": f"e{n:02}", "connector": "C", "worth": {"causes": {"new:": 100 - n}}}
        for n in range(causes.MAX_GROUPS + 3)
    ]
    engines = causes.groups({**SAVINGS, "by_place": places}, {})["engine"]
    assert next(iter(engines)) == "e00"
    assert len(engines) == causes.MAX_GROUPS


def test_the_bars_have_the_shares_of_each_group() -> None:
    spec, rows = charts.spec_and_rows(charts.causes_by({"pod-1": {"evicted": 60, "failed-load": 40}}, dark=True))
    assert [(row["group"], row["cause"], row["share"]) for row in rows] == [
        ("pod-1", "failed load", "40 (40 %)"),
        ("pod-1", "evicted", "60 (60 %)"),
    ]
    assert spec["encoding"]["color"]["scale"]["domain"] == ["failed load", "evicted"]


def test_what_is_unknown_names_what_would_reveal_it() -> None:
    sums = {"causes": {"held:gpu": 900, "unknown:probe": 40, "unknown:block_hashes": 10, "new:": 50}}
    assert causes.unknown(sums) == (
        "Of 40 % the cause is not known: no probe shows what the connector's store gains and loses. Of 10 % the cause is not"
        " known: the hashes of its blocks were not recorded: `block_hashes` is off, or the level is `basic`."
    )
    assert causes.unknown({"causes": {"new:": 50}}) == ""
    assert causes.unknown({"causes": {"unknown:late": 90, "new:": 10}}) == (
        "Of 90 % the cause is not known: it may have happened before kvtrail listened."
    )
    assert causes.unknown({"causes": {"unknown:late": 1, "new:": 999}}) == ""
    assert causes.largest({"causes": {"unknown:late": 90, "new:": 10}}) == ""
