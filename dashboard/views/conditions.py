"""The field for conditions on requests, `duration > 2s and evicted >= 100`; the page's address holds them."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.widgets import set_to, when_chosen
from kvtrail.tracer.model.conditions import NAMES, BadCondition, parsed

NAME = "where"
HELP = (
    "Conditions, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit (ms, s, min); a cause means its"
    f" tokens. Names: {', '.join(NAMES)}."
)


def field(label: str = "Conditions", *, name: str = NAME, example: str = "duration > 2s and evicted >= 100") -> str:
    """The field, and its text."""
    key = f"conditions_{name}"
    set_to(key, address.query().get(name, ""))

    def write() -> None:
        address.change({name: str(st.session_state[key]).strip()})

    st.text_input(
        label,
        key=key,
        on_change=when_chosen(key, write),
        placeholder=example,
        help=HELP,
        label_visibility="collapsed",
    )
    return str(st.session_state[key]).strip()


def are_valid(*conditions: str) -> bool:
    """Whether all of these are conditions; shows the reason if one is none."""
    for each in conditions:
        try:
            parsed(each)
        except BadCondition as error:
            st.error(plain(f"{str(error)[:1].upper()}{str(error)[1:]}."))
            return False
    return True
