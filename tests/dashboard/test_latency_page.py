"""What the pages say of how long requests take: percentiles, an area of the heat map, and groups."""

from __future__ import annotations

from typing import Any, get_args

from history import START_NS

from kvtrail.dashboard.content import latency, requests
from kvtrail.dashboard.content.time_range import of_query
from kvtrail.tracer.model.conditions import TIMES, Condition, parsed
from kvtrail.tracer.model.grouping import OfRequests
from kvtrail.tracer.serve.api.latency import latency_of
from kvtrail.tracer.store import Selection
from kvtrail.tracer.store.duration_bins import BOUNDS_NS

S = 10**9
STEP_NS = 60 * S
FIRST = START_NS // STEP_NS
WHICH = Selection(since_ns=START_NS, before_ns=START_NS + 3600 * S)
QUICK, SLOW = (next(n for n, bound in enumerate(BOUNDS_NS) if bound > ms * 10**6) - 1 for ms in (100, 5000))
"""The bins of 100 ms and of 5 s."""


def answer(*cells: tuple[int, int, int], requests: int = 0) -> dict[str, Any]:
    """The answer to these cells: the number of a minute, a bin, and how many requests."""
    counted = [(FIRST + minute, number, count) for minute, number, count in cells]
    whole = sum(count for *_, count in cells)
    found = latency_of(counted, WHICH, of="duration", step_ns=STEP_NS, requests=whole + requests)
    return found.model_dump(mode="json")


def test_every_measure_has_words_and_so_has_every_dimension() -> None:
    assert {*latency.MEASURES} == {*TIMES}
    assert {*requests.DIMENSIONS} == {*map(str, get_args(OfRequests))}


def test_the_summary_has_the_percentiles_and_those_without() -> None:
    said = latency.summary(answer((1, QUICK, 95), (2, SLOW, 5), requests=3))
    assert said.startswith("**Whole request**: of 100 requests, half took ")
    half, nearly_all = said.split("took ")[1].split(" or less")[0], said.split("99 % ")[1].split(".")[0]
    assert half.endswith(" ms")
    assert 90 < float(half.removesuffix(" ms")) < 110
    assert nearly_all.startswith(("4", "5"))
    assert said.endswith(f"3 other requests have none: {latency.WITHOUT}")
    assert latency.summary(answer(requests=2)).startswith("None of 2 requests has this time: ")


def test_an_area_takes_the_cells_that_it_touches_and_no_others() -> None:
    shown = answer((1, QUICK, 9), (2, SLOW, 4), (30, SLOW, 1))
    slow = [cell for cell in latency.cells(shown) if cell["low_ns"] > S]
    at_ms = slow[0]["at_ns"] / 10**6
    slowest = {"at": [at_ms + 1000, at_ms + 2000], "low": [4.9, 5.1]}
    found = latency.drawn(slowest, shown)
    assert found is not None
    (low, high) = parsed(found["where"])
    assert (low.name, low.value, high.value) == ("duration", slow[0]["low_ns"], slow[0]["high_ns"])
    drawn = of_query(found, now_ns=slow[0]["at_ns"] + 10**12)
    assert (drawn.since_ns, drawn.until_ns) == (slow[0]["at_ns"], slow[0]["at_ns"] + STEP_NS)
    assert latency.drawn({"at": [at_ms + 2000, at_ms + 1000], "low": [5.1, 4.9]}, shown) == found, "drawn from its end"
    assert latency.drawn({"at": [at_ms, at_ms + 1], "low": [1e6, 1e7]}, shown) is None
    assert latency.drawn({}, shown) is None


def test_a_group_selects_its_requests_beside_the_conditions_in_use() -> None:
    group = {
        "name": "a1b2c3d4e5f6", "text": "a1b2c3d4e5f6", "all_requests": 3, "asked": 200, "held": 20, "loaded": 100,
        "p50_ns": 10**9, "p90_ns": None, "p99_ns": None,
    }  # fmt: skip
    result = {
        "by": "tenant",
        "of": "first_token",
        "requests": 5,
        "groups": [group],
    }
    (row,) = requests.group_rows(result)
    assert (row["Tenant"], row["Requests"], row["p50"], row["p90"]) == ("a1b2c3d4", 3, 1.0, None)
    (named,) = requests.group_rows({**result, "groups": [{**group, "text": "Acme"}]})
    assert named["Tenant"] == "Acme"
    assert (row["Hit rate"], row["vLLM's own"]) == (0.5, 0.1)
    (named,) = requests.group_rows({**result, "groups": [{**group, "text": "Acme"}]})
    assert named["Tenant"] == "Acme", "by the sidecar's file of names"
    (plain,) = requests.group_rows({**result, "groups": [{**group, "name": "plain", "text": "plain"}]})
    assert plain["Tenant"] == "without salt or adapter", "as on the other pages"
    (chosen,) = requests.group_filters(result, {"where": "new > 5"})
    assert [each.value for each in parsed(chosen["where"])] == [5, "a1b2c3d4e5f6"]
    assert requests.group_filters({**result, "by": "engine"}, {}) == [{"on": "a1b2c3d4e5f6"}]
    (begun,) = requests.group_filters({**result, "by": "prefix"}, {})
    assert parsed(begun["where"]) == (Condition("prefix", "=", "a1b2c3d4e5f6"),)
    assert "Not shown: 2 requests of smaller groups." in requests.group_note(result, "duration")
    assert "Not shown" not in requests.group_note({**result, "requests": 3}, "duration")


def test_an_axis_has_round_minutes_and_hours() -> None:
    """An hour was between `33.3 min` and `167 min`."""
    longer = [each for each in latency.TICKS_S if each >= 60]
    assert all(each % 60 == 0 for each in longer)
    assert {60, 600, 3600} <= set(longer)


def test_no_request_without_a_filter_does_not_ask_to_remove_one() -> None:
    assert "remove a filter" in requests.none_found("", {"engine": "e-1"})
    assert "how to trace an engine" in requests.none_found("", {})
    assert "filter" not in requests.none_found("", {})
    assert "at any time" in requests.none_found("chat-7", {"engine": "e-1"})


def test_the_time_to_first_token_is_shown_first_where_any_request_has_it() -> None:
    """Level `basic` does not record it."""
    times = [{"of": "duration", "requests": 3}, {"of": "first_token", "requests": 1}]
    assert latency.usual({"times": times}) == "first_token"
    assert latency.usual({"times": times[:1]}) == "duration"
    assert [*latency.CHOICES][:2] == ["", "first_token"]


def test_the_tokens_of_the_requests_are_named_by_cause() -> None:
    said = latency.tokens({"tokens": {"evicted": 860, "held": 64, "unknown": 76, "new": 0}})
    assert said == "Of the 1,000 tokens that they asked for: 86 % evicted, 8 % unknown, 6 % held."
    assert latency.tokens({"tokens": {}}) == ""
