"""Links from page to page. A page's address holds what it shows, so a link carries it too."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.text import Link
from kvtrail.dashboard.scripts import invisible
from kvtrail.dashboard.views import address

CLICKED, SHOWN, MOVED = "clicked", "page_shown", "has_moved"
"""The session's keys for the link of the row that was clicked, with its page; for the page that is shown; and for whether it
shows another address since its last run as a whole."""


def arrive(page: str) -> None:
    """A run of this page begins. A click on another page has been followed."""
    st.session_state[SHOWN] = page
    st.session_state.pop(MOVED, None)
    clicked: tuple[Link, str] | None = st.session_state.get(CLICKED)
    if clicked is not None and clicked[1] != page:
        del st.session_state[CLICKED]


def link(page: str, label: str, *, icon: str = "", query: Mapping[str, str] | None = None) -> None:
    """A link to a page, with one of Google's Material icons.

    Streamlit's link to the page that is shown leaves the address as it was: reloaded or copied, it would show the old
    contents. So that is a button.
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
    """The query parameters that name a request, from its row or from a finding; and a step of its replay."""
    query = {"id": request["request"], "engine": request["engine"]}
    return query if step is None else {**query, "tab": "replay", "step": str(step)}


def remember_click(link: Link) -> None:
    """A row was clicked. `follow_click` follows its link: a callback may not, since no page runs then."""
    st.session_state[CLICKED] = link, st.session_state[SHOWN]


def follow_click() -> bool:
    """Whether a row was clicked; if so, go to its page.

    Until the browser has gone there, each refresh draws the link that leads there: what one run draws, the next may remove
    before the browser has seen it.
    """
    if st.session_state.get(MOVED):
        st.rerun()  # what is outside of a fragment shows the address, too
    clicked: tuple[Link, str] | None = st.session_state.get(CLICKED)
    if clicked is not None:
        follow(*clicked[0])
    return clicked is not None


def follow(page: str, query: Mapping[str, str]) -> None:
    """Go to a page as by a link, in one step of the browser's history: the browser clicks an invisible link.

    `st.switch_page` takes two steps, the first to this page with the other's query, so that the reader would have to go back
    twice. A link to the current page changes nothing but its address, which is then written directly.
    """
    if page == st.session_state[SHOWN]:
        st.session_state.pop(CLICKED, None)
        address.replace(query)
        st.rerun()
    with st.container(key="follow"):
        link(page, page, query=query)
        invisible("follow")(key="follow_clicker")
