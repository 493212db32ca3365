"""The theme in which a page is shown."""

from __future__ import annotations

import streamlit as st


def is_dark() -> bool:
    """Whether the reader's page is dark, for charts, which need their colours when they are made."""
    return bool(st.context.theme.type == "dark")
