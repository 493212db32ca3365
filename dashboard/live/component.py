"""The component in Streamlit's form: one JavaScript module, one style sheet, one piece of HTML."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard.scripts import FOLDER as SHARED
from kvtrail.dashboard.scripts import joined

FOLDER = Path(__file__).parent
MODULES = (
    "time", "address", "theme", "rows", "model", "paint", "cursor", "card", "heads", "sentences", "hover",
    "markers", "toolbar", "input", "live",
)  # fmt: skip
"""Each module comes after its imports."""
NAME = "kvtrail_live"


def script() -> str:
    """All modules as one."""
    return joined([SHARED / "copying.js", SHARED / "ids.js", *(FOLDER / f"{name}.js" for name in MODULES)])


@cache
def component() -> ComponentRenderer:
    """The component, registered once."""
    style, body = ((FOLDER / f"live.{kind}").read_text() for kind in ("css", "html"))
    return st.components.v2.component(NAME, js=script(), css=style, html=body)
