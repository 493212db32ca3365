"""Widgets that show what the page's address says, and write into it.

A browser that is behind reports what its widgets showed before. Where one shows something else by now, or its page was left,
Streamlit takes that for a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import streamlit as st

from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.run import is_refresh, page_shown

WIDGETS = "widgets"
"""The session's name for what the widgets of the page show."""


@dataclass
class _Shown:
    value: object
    before: list[object] = field(default_factory=list)
    """What it showed when it was set to something else, since somebody last chose."""


@dataclass
class _Widgets:
    page: str
    shown: dict[str, _Shown] = field(default_factory=dict)
    """What each shows, by its key."""


def set_to(key: str, value: object) -> None:
    """Set a widget to a value. One that has it already is left alone: told again, it would forget what is being typed."""
    shown = _widgets().shown.setdefault(key, _Shown(value))
    shown.value = value
    if key not in st.session_state:
        st.session_state[key] = value
    elif (before := st.session_state[key]) != value:
        shown.before.append(before)
        st.session_state[key] = value


def when_chosen(key: str, write: Callable[[], None]) -> Callable[[], None]:
    """What a widget outside of the refreshed parts calls when it changes: `write`, if somebody has chosen."""

    def changed() -> None:
        shown = _widgets().shown.get(key)
        if shown is None:  # its page was left
            return
        chosen = st.session_state[key]
        # Who chooses has the whole page run. A refresh may bring the choice before that run does, or what is over by now.
        if is_refresh() or (chosen in shown.before and address.is_behind()):
            st.session_state[key] = shown.value
        else:
            shown.value, shown.before = chosen, []
            write()

    return changed


def when_pressed(write: Callable[[], None]) -> Callable[[], None]:
    """What a button calls: `write`, as long as its page is shown."""
    page = page_shown()

    def pressed() -> None:
        if page == page_shown():
            write()

    return pressed


def _widgets() -> _Widgets:
    """The widgets of the page that is shown. Who leaves a page before it is drawn takes values along that the browser has
    never been told, and so would not show: they are forgotten."""
    widgets: _Widgets | None = st.session_state.get(WIDGETS)
    if widgets is None or widgets.page != page_shown():
        for key in widgets.shown if widgets else ():
            st.session_state.pop(key, None)
        widgets = st.session_state[WIDGETS] = _Widgets(page_shown())
    return widgets
