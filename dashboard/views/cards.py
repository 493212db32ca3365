"""Cards with a number, and badges."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvtrail.dashboard.content import palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.text import plain


def cards() -> Any:
    """A container for a row of cards of equal width (style.css)."""
    return st.container(horizontal=True, gap="small", key="cards-small")


def card(name: str, value: str, note: str | None = None, term: str = "", **options: Any) -> None:
    """A number with its name and a grey note; `term` is its entry in the glossary."""
    st.metric(
        name, value, note, delta_color="off", delta_arrow="off", border=True, help=TERMS.get(term) or None, **options
    )


def badge(name: str, *, label: str | None = None) -> None:
    """A status, verdict or severity in its colour."""
    st.badge(label or plain(palette.label(name)), color=palette.BADGES.get(name, "gray"))  # type: ignore[arg-type]
