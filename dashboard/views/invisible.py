"""Invisible components: the scripts beside this file, which the browser runs where one is drawn."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer


@cache
def script(name: str) -> ComponentRenderer:
    """The component of one of them, registered once. It has no style of its own to be kept apart."""
    js = Path(__file__).with_name(f"{name}.js").read_text()
    return st.components.v2.component(f"kvtrail_{name}", js=js, isolate_styles=False)
