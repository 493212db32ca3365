"""Clicks on rows: a link to another page is clicked by the browser, a link to the current page changes its URL."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
from streamlit.testing.v1 import AppTest


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """Streamlit replaces the main module, and forks would run the page again."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


def page() -> None:
    import streamlit as st

    from kvtrail.dashboard.views import links

    links.arrive("overview")
    st.session_state["runs"] = runs = st.session_state.get("runs", 0) + 1
    if runs == 1:
        links.remember_click(("overview", {"id": "r-1"}))
    if runs < 5:
        links.follow_click()
    st.write("the whole page")


def test_a_click_on_a_row_that_leads_to_the_current_page_runs_it_once_more() -> None:
    app = AppTest.from_function(page, default_timeout=1e9).run()
    assert not app.exception, app.exception[0].stack_trace
    assert (app.session_state["runs"], app.query_params) == (2, {"id": "r-1"})
    assert [each.value for each in app.markdown] == ["the whole page"]
