"""Going to another page as by a link: one step of the browser's history.

`st.switch_page` makes two, the first of which is this page with the other's address: one would have to go back twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard.views.links import link


def follow(page: str, query: Mapping[str, str]) -> None:
    """Put a link where nobody sees it, and have the browser click it."""
    with st.container(key="follow"):
        link(page, page, query=query)
        _clicker()(key="follow_clicker")


@cache
def _clicker() -> ComponentRenderer:
    """The component, registered once."""
    return st.components.v2.component("kvtrail_follow", js=Path(__file__).with_name("follow.js").read_text())
