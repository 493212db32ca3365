"""Links between pages. A page's URL holds its state, so a link carries it too."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import Link
from kvtrail.dashboard.scripts import invisible
from kvtrail.dashboard.views import address

CLICKED, SHOWN, MOVED = "clicked", "page_shown", "has_moved"
"""The session's keys for the link of the clicked row, with its page; for the current page; and for whether its URL has
changed since its last complete run."""


def arrive(page: str) -> None:
    """Note that a run of this page begins: a click on another page has been followed."""
    st.session_state[SHOWN] = page
    st.session_state.pop(MOVED, None)
    clicked: tuple[Link, str] | None = st.session_state.get(CLICKED)
    if clicked is not None and clicked[1] != page:
        del st.session_state[CLICKED]


def link(page: str, label: str, *, icon: str = "", query: Mapping[str, str] | None = None) -> None:
    """A link to a page, with one of Google's Material icons.

    Streamlit's link to the current page does not change the URL: reloaded or copied, it would show the old contents. So such
    a link is a button.
    """
    icon_name, to = f":material/{icon}:" if icon else None, dict(query or {})
    if page == st.session_state[SHOWN]:
        key = f"to {page} {to} {label}"
        st.button(label, key=key, icon=icon_name, type="tertiary", on_click=_move, args=(to,))
        return
    st.page_link(f"views/{page}.py", label=label, icon=icon_name, query_params=to)


def _move(query: Mapping[str, str]) -> None:
    address.replace(query)
    st.session_state[MOVED] = True


def request_query(request: Row, *, step: int | None = None) -> dict[str, str]:
    """The query parameters that identify a request, from its row or from a finding, and a step of its replay."""
    query = {"id": request["request"], "engine": request["engine"]}
    return query if step is None else {**query, "tab": "replay", "step": str(step)}


def remember_click(link: Link) -> None:
    """Callback of a click on a row. `follow_click` follows the link: a callback cannot, since no page runs then."""
    st.session_state[CLICKED] = link, st.session_state[SHOWN]


def follow_click() -> bool:
    """Whether a row was clicked; if so, go to its page.

    Until the browser has opened the page, each refresh draws the link again: otherwise the next run may remove the link
    before the browser has seen it.
    """
    if st.session_state.get(MOVED):
        st.rerun()  # elements outside of a fragment show the URL, too
    clicked: tuple[Link, str] | None = st.session_state.get(CLICKED)
    if clicked is not None:
        follow(*clicked[0])
    return clicked is not None


def follow(page: str, query: Mapping[str, str]) -> None:
    """Go to a page in one step of the browser's history: the browser clicks an invisible link.

    `st.switch_page` takes two steps, the first to this page with the other's query, so that the user would have to go back
    twice. A link to the current page changes only the URL, which is then written directly.
    """
    if page == st.session_state[SHOWN]:
        st.session_state.pop(CLICKED, None)
        address.replace(query)
        st.rerun()
    with st.container(key="follow"):
        link(page, page, query=query)
        invisible("follow")(key="follow_clicker")
