"""Markers on charts over time."""

from __future__ import annotations

from typing import Any

from history import START_NS

from kvtrail.dashboard import palette
from kvtrail.dashboard.content import charts

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
    return charts.spec_and_rows(charts.findings_over_time(trend, dark=False))[0]


def test_a_chart_keeps_its_parts_and_gets_a_line_and_a_mark_for_each_marker() -> None:
    before = spec()
    after = charts.with_markers(before, [marker(), marker("death", minute=2)], dark=False)
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


def test_what_is_under_the_pointer() -> None:
    (row,) = charts.marker_rows([marker(text="was started: vLLM 0.11 → 0.12", count=3)], dark=False)
    assert row["what"] == "3 × deploy"  # noqa: RUF001
    assert row["text"] == "alpha was started: vLLM 0.11 → 0.12"
    (row,) = charts.marker_rows([marker(text="x" * 500)], dark=False)
    assert len(row["text"]) == charts.LONGEST
    assert row["text"].endswith("…")


def test_a_kind_of_a_newer_tracer_is_drawn_too() -> None:
    (row,) = charts.marker_rows([marker("eclipse")], dark=False)
    assert (row["colour"], row["what"]) == (palette.GREY.light, "eclipse")


def test_kinds_differ_by_more_than_colour() -> None:
    drawn = {kind: (charts.SHAPES.get(kind, "triangle-down"), palette.MARKER[kind].colour) for kind in palette.MARKER}
    assert len(set(drawn.values())) == len(drawn)
