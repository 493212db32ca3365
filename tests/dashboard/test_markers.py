"""Markers on charts over time."""

from __future__ import annotations

from typing import Any

import pytest
from history import START_NS

from kvtrail.dashboard.content import markers, palette, trends

MINUTE_NS = 60 * 10**9


def marker(kind: str = "deploy", *, minute: float = 1, text: str = "was started", count: int = 1) -> dict[str, Any]:
    at_ns = START_NS + round(minute * MINUTE_NS)
    return {"kind": kind, "at_ns": at_ns, "engine": "a-1", "engine_name": "alpha", "text": text, "count": count}


def spec() -> dict[str, Any]:
    counts = [{"rule": "stale-lookup", "severity": "hang", "at_ns": START_NS, "findings": 2}]
    trend = {
        "counts": counts,
        "since_ns": START_NS,
        "until_ns": START_NS + 10 * MINUTE_NS,
        "step_ns": MINUTE_NS,
    }
    return trends.spec_and_rows(trends.findings_over_time(trend, dark=False))[0]


def test_a_chart_keeps_its_parts_and_gets_a_line_and_a_mark_for_each_marker() -> None:
    before = spec()
    after = markers.drawn(before, [marker(), marker("death", minute=2)], dark=False)
    bars, lines, points = after["layer"]
    assert (bars["mark"], bars["params"]) == (before["mark"], before["params"])
    assert {name: bars["encoding"][name] for name in ("x", "x2", "y", "order", "tooltip")} == {
        name: before["encoding"][name] for name in ("x", "x2", "y", "order", "tooltip")
    }
    assert bars["encoding"]["color"] == before["encoding"]["color"]
    assert (after["height"], after["padding"], after["config"]) == (
        before["height"],
        before["padding"],
        before["config"],
    )
    assert "params" not in after, "a selection belongs to the layer with the bars"
    assert "data" not in after, "the rows of the chart itself are sent beside its spec"
    rows = lines["data"]["values"]
    assert rows == points["data"]["values"]
    assert [each["at"] for each in rows] == [(START_NS + minute * MINUTE_NS) // 10**6 for minute in (1, 2)]
    assert rows[1]["colour"] == palette.RED.light
    assert lines["encoding"]["x"]["scale"] == {"type": "utc"}, "the base has the domain"


def test_only_markers_within_the_axis_are_drawn() -> None:
    before = spec()
    assert markers.drawn(before, [marker(minute=-1), marker(minute=11)], dark=False) == before
    (row,) = markers.drawn(before, [marker(minute=-1), marker(minute=9)], dark=True)["layer"][1]["data"]["values"]
    assert row["at"] == (START_NS + 9 * MINUTE_NS) // 10**6


def test_a_chart_that_has_layers_gets_more() -> None:
    layered = markers.drawn(spec(), [marker()], dark=False)
    again = markers.drawn(layered, [marker("reset", text="reset it")], dark=False)
    assert len(again["layer"]) == len(layered["layer"]) + 2


def test_a_chart_without_time_is_refused() -> None:
    bars = trends.causes_by({"a": {"new": 3}}, dark=False).to_dict()
    with pytest.raises(ValueError, match="need a chart with an axis of time"):
        markers.drawn(bars, [marker()], dark=False)


def test_what_is_under_the_pointer() -> None:
    (row,) = markers.marker_rows([marker(text="was started: vLLM 0.11 → 0.12", count=3)], None, dark=False)
    assert row["what"] == "3 × deploy"  # noqa: RUF001
    assert row["text"] == "alpha was started: vLLM 0.11 → 0.12"
    (row,) = markers.marker_rows([marker(text="x" * 500)], None, dark=False)
    assert len(row["text"]) == markers.LONGEST
    assert row["text"].endswith("…")


def test_a_kind_of_a_newer_tracer_is_drawn_too() -> None:
    (row,) = markers.marker_rows([marker("eclipse")], None, dark=False)
    assert (row["colour"], row["what"]) == (palette.GREY.light, "eclipse")
    assert markers.present([marker("eclipse"), marker("reset"), marker("deploy")]) == ["deploy", "reset", "eclipse"]


def test_kinds_differ_by_more_than_colour() -> None:
    drawn = {kind: (markers.SHAPES.get(kind, "triangle-down"), palette.MARKER[kind].colour) for kind in palette.MARKER}
    assert len(set(drawn.values())) == len(drawn)
