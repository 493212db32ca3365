"""The component in Streamlit's form."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard.scripts import FOLDER, joined

NAME = "kvtrail_table"
OPEN = "open"
"""The trigger of a click, with the row's address."""


@cache
def component() -> ComponentRenderer:
    """The component, registered once; the page has its styles."""
    return st.components.v2.component(
        NAME, js=joined([FOLDER / "ids.js", Path(__file__).with_name("table.js")]), isolate_styles=False
    )
