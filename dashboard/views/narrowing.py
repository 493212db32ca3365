"""What pages about windows of time share: the choice of the window and of filters, all of it in the page's address."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from dashboard import wording
from dashboard.window import RANGES, USUAL, Window, window

ANY = "any"


def choose_range() -> str:
    """The range back from now; it does nothing while the address pins a window."""
    chosen = st.segmented_control(
        "Window", list(RANGES), default=USUAL, key="range", bind="query-params", required=True,
        disabled=_pinned(time.time_ns()).pinned,
    )  # fmt: skip
    return str(chosen)


def shown_window(chosen: str) -> Window:
    """The window as of now."""
    now_ns = time.time_ns()
    pinned = _pinned(now_ns)
    if pinned.pinned:
        return pinned
    return window(chosen=chosen, since="", until="", now_ns=now_ns)


def pinning(shown: Window, page: str, filters: dict[str, str]) -> None:
    """A line that names the window, with the link that pins it, or lets it follow the clock again."""
    now_ns = time.time_ns()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(wording.plain(shown.text(now_ns=now_ns)), width="content")
        given = {name: value for name, value in filters.items() if value}
        if shown.pinned:
            st.page_link(page, label="Follow the clock again", icon=":material/schedule:", query_params=given)
        else:
            help_ = "The same window under a link of its own, to be shared: it does not move on."
            query = {**given, **shown.address}
            st.page_link(page, label="Pin this window", icon=":material/keep:", query_params=query, help=help_)


def choose(label: str, choices: Sequence[str], *, key: str, cut: int | None = None) -> str:
    """One filter; an empty text means any. What the address names is a choice, even if nothing in the window has it."""
    named = st.query_params.get(key, ANY)
    options = list(dict.fromkeys([ANY, *choices, named]))
    chosen = st.selectbox(label, options, key=key, bind="query-params", format_func=lambda name: name[:cut])
    return "" if chosen in (None, ANY) else str(chosen)


def _pinned(now_ns: int) -> Window:
    since, until = st.query_params.get("since", ""), st.query_params.get("until", "")
    return window(chosen=USUAL, since=since, until=until, now_ns=now_ns)
