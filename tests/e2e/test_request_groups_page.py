"""Requests in groups, and filtered by how they ended: a group leads to its requests, and every page has the same filter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import needs_chromium, open_row, playwright, query_of, rows, see, shoot
from history import hash_of
from processes import SharedDashboard, Tracer, until
from stories import feed

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
BEGINS = {"same-1": "x y z", "same-2": "x y w", "other": "x v z"}
"""Blocks of 32 tokens: the second one ends the first 64."""


@pytest.fixture(scope="module")
def tracer(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    with pages.showing(tmp_path_factory.mktemp("groups")) as tracer:
        for name, blocks in BEGINS.items():
            ends = "end aborted" if name == "same-2" else "end"
            text = f"start 96 of {blocks}\nL 96 c0 h64 -> 64\nA 64 [1-3]\nS 64+32\n{ends}"
            feed(tracer, text, request=f"{name}-0123abcd", engine=f"engine-{name}")
        yield tracer


def test_prompts_that_begin_alike_are_a_row_that_leads_to_them(
    page: playwright.Page, tracer: Tracer, pages: SharedDashboard
) -> None:
    page.goto(f"{pages.url}/requests?from=now-15m&to=now&by=prefix")
    until(
        lambda: [cells[:2] for cells in rows(page, "groups")] == [[hash_of("y").hex(), "2"], [hash_of("v").hex(), "1"]]
    )
    shoot(page, "request-groups")
    open_row(page, "groups")
    until(lambda: {cells[0] for cells in rows(page, "requests_table")} == {"same-1-0123abcd", "same-2-0123abcd"})
    assert query_of(page)["where"] == [f"prefix = {hash_of('y').hex()}"]


@pytest.mark.long
def test_groups_heat_map_and_lanes_are_filtered_by_the_outcome(
    page: playwright.Page, tracer: Tracer, pages: SharedDashboard
) -> None:
    aborted = f"{pages.url}/%s?from=now-15m&to=now&status=aborted"
    page.goto(aborted % "requests" + "&by=prefix")
    until(lambda: [cells[:2] for cells in rows(page, "groups")] == [[hash_of("y").hex(), "1"]])
    page.goto(aborted % "requests" + "&view=heat")
    see(page, "of 1 request, half took")
    page.goto(aborted % "requests" + "&view=lanes")
    see(page, "1 request")
