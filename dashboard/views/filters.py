"""Filters, whose choices are in the page's address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

ANY = "any"
PAGE, SET = "page", "set_widgets"
"""The session's names for the page that is shown, and for its widgets that are set to what the address says."""
WRITTEN = "written"
"""The session's name for the address before a choice was written into it, and after it, until the whole page is run."""


def filter_bar() -> DeltaGenerator:
    """Where a page's filters stand: in a line, and on a phone three beside each other."""
    return st.container(key="filters", horizontal=True, gap="small", vertical_alignment="bottom")


def choose(label: str, choices: Sequence[str], *, name: str, shown: Mapping[str, str] | None = None) -> str:
    """A filter's choice, empty for any. What the address names is a choice even if nothing in the range has it. `shown` has
    the texts of choices that are not shown as they are."""
    texts = {ANY: f"Any {label.lower()}", **(shown or {})}
    options = list(dict.fromkeys([ANY, *choices, st.query_params.get(name, ANY)]))
    key = follow(name, options, default=ANY)
    st.selectbox(
        label,
        options,
        key=key,
        on_change=on_this_page(write),
        args=(name, key, ANY),
        format_func=lambda text: texts.get(text, text),
        label_visibility="collapsed",
    )
    chosen = st.session_state[key]
    return "" if chosen in (None, ANY) else str(chosen)


def on_this_page(change: Callable[..., None]) -> Callable[..., None]:
    """What a widget calls when it changes, as long as its page is shown. A browser that is behind reports the widgets of the
    page that was left. Streamlit has forgotten them and takes them for changed: the next address would get what they say.

    What changes in the address is kept for `enter`."""
    page = st.session_state.get(PAGE)

    def change_here(*arguments: object) -> None:
        if st.session_state.get(PAGE) == page:
            before = st.query_params.to_dict()
            change(*arguments)
            st.session_state[WRITTEN] = (before, st.query_params.to_dict())

    return change_here


def follow(name: str, options: Sequence[str], *, default: str) -> str:
    """Set a widget to what the address says, and return its key.

    Streamlit's own `bind` would forbid links from this page to another whose address has the same name in it.
    """
    key, named = f"filter_{name}", st.query_params.get(name, default)
    set_to(key, named if named in options else default)
    return key


def enter(page: str) -> None:
    """Say which page is shown. Its widgets are set anew: whoever leaves a page before it is drawn takes values along that the
    browser has never been told, and so would not show.

    A browser tells of a choice and has the whole page run. A refresh of a part of it may come first: it brings the choice,
    which is written into the address. But the run after it brings the address from before: the browser knows no other."""
    before, after = st.session_state.pop(WRITTEN, (None, {}))
    if before != after and before == st.query_params.to_dict():
        st.query_params.from_dict(after)
    if st.session_state.get(PAGE) != page:
        for key in st.session_state.get(SET, ()):
            st.session_state.pop(key, None)
        st.session_state[PAGE], st.session_state[SET] = page, set()


def set_to(key: str, value: object) -> None:
    """Set a widget to a value. One that has it already is left alone: told again, it would forget what is being typed."""
    st.session_state[SET].add(key)
    if st.session_state.get(key) != value:
        st.session_state[key] = value


def write(name: str, key: str, default: str) -> None:
    """Write the choice into the address; the default is left out."""
    chosen = st.session_state[key]
    if chosen in (None, default):
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = chosen
