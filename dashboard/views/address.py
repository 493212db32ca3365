"""The page's URL: it holds the page's state, and each choice in a widget is written into it.

A browser reports its URL with every run, and fragments run every two seconds; so a browser that lags behind reports a
URL older than the last choice. The session therefore keeps the current URL, and the URLs that it replaced, until the browser
reports the newest. A step back in the browser's history also reports an older URL, and Streamlit marks it as such.

In the same way a browser reports old values of its widgets: if a widget has another value by now, or the user has left its
page, Streamlit treats the old value as a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext

ADDRESS, WIDGETS = "address", "widgets"
"""The session's keys for the URL, and for the values of the page's widgets."""
Query = dict[str, list[str]]


@dataclass
class _Address:
    page: str
    query: Query
    run: object = None
    """The run in which the URL was last reconciled with the browser's."""
    older: list[Query] = field(default_factory=list)
    """The queries replaced since the browser last reported the newest."""


def query() -> dict[str, str]:
    """The query; the last value of each name."""
    return {name: found[-1] for name, found in _current().query.items()}


def values(name: str) -> list[str]:
    """All values of a name in the query."""
    return _current().query.get(name, [])


def change(values: Mapping[str, str]) -> None:
    """Change the query; an empty value removes its name."""
    kept = {name: found for name, found in _current().query.items() if name not in values}
    replace({**kept, **{name: value for name, value in values.items() if value}})


def replace(values: Mapping[str, str | Iterable[str]]) -> None:
    """Replace the query, in one step of the browser's history."""
    address = _current()
    query = {name: [found] if isinstance(found, str) else list(found) for name, found in values.items()}
    if query != address.query:
        address.older.append(address.query)
        address.query = query
        reported = _reported()
        # In one call, so that it is one step; and only the differences, since Streamlit rejects writes to names that `bind`
        # wrote.
        st.query_params.update(
            {name: query.get(name, []) for name in {**reported, **query} if query.get(name) != reported.get(name)}
        )


def _current() -> _Address:
    """The URL, reconciled with the browser's once a run, before the run writes into it."""
    address: _Address | None = st.session_state.get(ADDRESS)
    run = _context()
    if address is not None and address.run is run.cursors:
        return address
    reported, page = _reported(), run.page_script_hash
    if address is None or address.page != page or reported not in address.older or run.is_history_navigation:
        address = st.session_state[ADDRESS] = _Address(page, reported)
    address.run = run.cursors
    return address


def _reported() -> Query:
    """Streamlit's query: the browser's, with this run's changes."""
    return {name: found for name in st.query_params if (found := st.query_params.get_all(name))}


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
    """Set a widget to a value, unless it already has it: setting it again would discard typed text."""
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
        # A choice runs the whole page. A refresh of fragments may report it before that run, or report an old value.
        if _context().fragment_ids_this_run is not None or (chosen in shown.before and _current().older):
            st.session_state[key] = shown.value
        else:
            shown.value, shown.before = chosen, []
            write()

    return changed


def _widgets() -> _Widgets:
    """The widgets of the current page. Values of another page are dropped: if that page was left before it was drawn, the
    browser never received them and would not show them."""
    widgets: _Widgets | None = st.session_state.get(WIDGETS)
    if widgets is None or widgets.page != _context().page_script_hash:
        for key in widgets.shown if widgets else ():
            st.session_state.pop(key, None)
        widgets = st.session_state[WIDGETS] = _Widgets(_context().page_script_hash)
    return widgets


def _context() -> ScriptRunContext:
    """Streamlit's description of the run, which has no public names. Its `cursors` are an object unique to the run: its
    callbacks, then the whole page or the refreshed fragments."""
    context = get_script_run_ctx()
    assert context is not None, "Streamlit runs the pages"
    return context
