"""Two groups of requests side by side: what differs between them."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.dashboard.content import compare_groups, trends
from kvtrail.dashboard.content.latency import MEASURES
from kvtrail.tracer.store.duration_bins import BOUNDS_NS, percentile

MS = 10**6


def group(tokens: dict[str, int] | None = None, **ms: list[float]) -> dict[str, Any]:
    """The answer about requests with these times, in milliseconds by measure."""
    times = []
    for of in MEASURES:
        bins: dict[int, int] = {}
        for each in ms.get(of, []):
            number = sum(bound <= each * MS for bound in BOUNDS_NS) - 1
            bins[number] = bins.get(number, 0) + 1
        shares = {f"p{share}_ns": percentile(bins, share / 100) for share in (50, 90, 99)}
        listed = [[BOUNDS_NS[number], BOUNDS_NS[number + 1], bins[number]] for number in sorted(bins)]
        times.append({"of": of, "requests": sum(bins.values()), "bins": listed, **shares})
    return {"requests": len(ms.get("duration", [])), "times": times, "tokens": tokens or {}}


SLOW = group({"evicted": 80, "loaded": 20}, duration=[900.0, 2000.0], prefill=[800.0], queued=[10.0])
QUICK = group({"evicted": 10, "loaded": 90}, duration=[100.0, 110.0, 120.0, 4000.0], queued=[10.0])


def test_the_summary_names_the_time_and_the_cause_that_differ_most() -> None:
    said = compare_groups.summary(SLOW, QUICK)
    assert said.startswith("A has 2 requests, B 4 requests. The median of “whole request” differs most: A ")
    assert said.endswith("By cause, tokens evicted differ most: A 80.0 % of those asked for, B 10.0 %.")
    assert compare_groups.summary(QUICK, QUICK) == (
        "A has 4 requests, B 4 requests. No median time differs by more than a fifth."
    )
    assert "group A" in compare_groups.summary(group(), QUICK)
    assert "group A and B" in compare_groups.summary(group(), group())


def test_what_they_are_filtered_by_is_no_discovery() -> None:
    slow = group({"evicted": 80, "loaded": 20}, duration=[3000.0], prefill=[2000.0], queued=[10.0])
    quick = group({"evicted": 10, "loaded": 90}, duration=[100.0], prefill=[90.0], queued=[10.0])
    said = compare_groups.summary(slow, quick, ({"where": "duration > 2s"}, {"where": "duration <= 2s"}))
    assert "Apart from “whole request”, by which they are filtered, the median of “prefill” differs most: A " in said
    by_both = {"where": "duration > 2s and prefill > 1s and evicted > 50"}
    said = compare_groups.summary(slow, quick, (by_both, {"engine": "a-1"}))
    assert "Apart from “whole request”, “prefill”, by which they are filtered, no median time differs" in said
    assert "By cause, tokens loaded differ most" in said
    same = {"where": "duration > 1ms"}
    said = compare_groups.summary(slow, quick, ({**same, "engine": "a-1"}, {**same, "engine": "b-1"}))
    assert "The median of “whole request” differs most" in said, "both have this condition"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"where": "duration > 2s"}, {}, "B contains A, since it has no filters."),
        ({}, {"engine": "a-1"}, "A contains B, since it has no filters."),
        (
            {"where": "duration > 2s and evicted > 1", "engine": "a-1"},
            {"where": "evicted > 1"},
            "B contains A, since its filters are a part of the other's.",
        ),
        ({"where": "duration > 2s"}, {"where": "duration <= 2s"}, ""),
        ({"engine": "a-1"}, {"engine": "b-1"}, ""),
    ],
)
def test_it_is_said_that_one_contains_the_other(a: dict[str, str], b: dict[str, str], said: str) -> None:
    assert compare_groups.summary(SLOW, QUICK, (a, b)).partition("B 4 requests. ")[2].startswith(said)
    assert ("contains" in compare_groups.summary(SLOW, QUICK, (a, b))) is bool(said)


def test_rows_have_both_groups_and_leave_out_what_neither_has() -> None:
    rows = {row["Time"]: row for row in compare_groups.time_rows(SLOW, QUICK)}
    assert [*rows] == [MEASURES[of] for of in ("duration", "queued", "prefill")]
    assert rows["prefill"]["B: half within"] == "\N{EN DASH}"
    assert rows["prefill"]["A: half within"].endswith(" ms")
    (evicted, loaded) = compare_groups.cause_rows(SLOW, QUICK)
    assert (evicted["Tokens"], evicted["Reused"], evicted["A: share"], evicted["B: tokens"]) == (
        "evicted",
        "computed",
        80,
        10,
    )
    assert loaded["Reused"] == "reused"


@pytest.mark.parametrize("dark", [False, True])
def test_each_curve_rises_from_none_to_all(dark: bool) -> None:
    _, rows = trends.spec_and_rows(compare_groups.cumulative(SLOW, QUICK, "duration", dark=dark))
    for letter in compare_groups.LETTERS:
        shares = [row["share"] for row in rows if row["group"] == letter]
        assert (shares[0], shares[-1]) == (0.0, 1.0)
        assert shares == sorted(shares)
    _, rows = trends.spec_and_rows(compare_groups.cumulative(SLOW, QUICK, "prefill", dark=dark))
    assert {row["group"] for row in rows} == {"A"}
