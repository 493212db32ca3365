"""The heat map of latencies: an area that is drawn on it lists its requests, and is in the address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import box_of, drawn, needs_chromium, open_row, playwright, query_of, rows, see, shoot
from connection import Connection
from processes import SharedDashboard, Tracer, until
from stories import HEALTHY, feed

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def tracer(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    with pages.showing(tmp_path_factory.mktemp("latency")) as tracer:
        for number in range(3):
            feed(tracer, HEALTHY, request=f"area-{number}-0123abcd", engine=f"engine-{number}")
        yield tracer


def test_an_area_of_the_heat_map_lists_its_requests(
    page: playwright.Page, tracer: Tracer, pages: SharedDashboard
) -> None:
    connection = Connection(page)
    page.goto(f"{pages.url}/requests?view=heat&from=now-15m&to=now")
    see(page, "of 3 requests, half took")
    drawn(page)
    chart = page.get_by_test_id("stVegaLiteChart").first

    def draw_an_area() -> None:
        """From the middle of the top to the right end, above the axis."""
        chart.scroll_into_view_if_needed()
        box = box_of(chart)
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 8)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 6, box["y"] + box["height"] - 40, steps=8)
        page.mouse.up()

    connection.repeat(draw_an_area)
    see(page, "In this area")
    until(lambda: {cells[0] for cells in rows(page, "area")} == {f"area-{n}-0123abcd" for n in range(3)})
    assert query_of(page)["area"][0].count("~") == 3
    shoot(page, "latency")
    open_row(page, "area")
    see(page, "Every step")
    page.go_back()
    page.get_by_text("All of them").click()
    until(lambda: len(rows(page, "requests_table")) == 3)
    assert query_of(page)["where"][0].startswith("duration >= ")
