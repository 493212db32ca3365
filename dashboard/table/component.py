"""The component in Streamlit's form."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

FOLDER = Path(__file__).parent
NAME = "kvtrail_table"
OPEN = "open"
"""The trigger of a click, with the row's address."""


@cache
def component() -> ComponentRenderer:
    """The component, registered once; the page has its styles."""
    return st.components.v2.component(NAME, js=(FOLDER / "table.js").read_text(), isolate_styles=False)
