"""The browser's history, in which only the pages are that somebody went to."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer


def keep() -> None:
    """Draw the invisible component that keeps late pages out of it."""
    with st.container(key="history"):
        _keeper()(key="history_keeper")


@cache
def _keeper() -> ComponentRenderer:
    """The component, registered once."""
    script = Path(__file__).with_name("history.js").read_text()
    return st.components.v2.component("kvtrail_history", js=script, isolate_styles=False)
