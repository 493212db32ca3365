"""Widgets that show values of the page's address, and write choices into it.

A browser that lags behind reports old values of its widgets. If a widget has another value by now, or its page was left,
Streamlit takes the old value for a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import streamlit as st

from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.context import is_refresh, page_shown

WIDGETS = "widgets"
"""The session's key for the values of the page's widgets."""


@dataclass
class _Shown:
    value: object
    before: list[object] = field(default_factory=list)
    """Its previous values since the last choice."""


@dataclass
class _Widgets:
    page: str
    shown: dict[str, _Shown] = field(default_factory=dict)
    """By the widget's key."""


def set_to(key: str, value: object) -> None:
    """Set a widget to a value. A widget that has it already is left alone: setting it again would discard typed text."""
    shown = _widgets().shown.setdefault(key, _Shown(value))
    shown.value = value
    if key not in st.session_state:
        st.session_state[key] = value
    elif (before := st.session_state[key]) != value:
        shown.before.append(before)
        st.session_state[key] = value


def when_chosen(key: str, write: Callable[[], None]) -> Callable[[], None]:
    """The `on_change` of a widget outside of fragments: calls `write` if the change is a choice."""

    def changed() -> None:
        shown = _widgets().shown.get(key)
        if shown is None:  # its page was left
            return
        chosen = st.session_state[key]
        # A choice runs the whole page. A refresh may report it before that run, or report an old value.
        if is_refresh() or (chosen in shown.before and address.is_behind()):
            st.session_state[key] = shown.value
        else:
            shown.value, shown.before = chosen, []
            write()

    return changed


def when_pressed(write: Callable[[], None]) -> Callable[[], None]:
    """The `on_click` of a button: calls `write` while its page is shown."""
    page = page_shown()

    def pressed() -> None:
        if page == page_shown():
            write()

    return pressed


def _widgets() -> _Widgets:
    """The widgets of the current page. Values of another page are dropped: if that page was left before it was drawn, the
    browser never received them and would not show them."""
    widgets: _Widgets | None = st.session_state.get(WIDGETS)
    if widgets is None or widgets.page != page_shown():
        for key in widgets.shown if widgets else ():
            st.session_state.pop(key, None)
        widgets = st.session_state[WIDGETS] = _Widgets(page_shown())
    return widgets
