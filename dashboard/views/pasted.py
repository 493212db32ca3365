"""What a pasted line of a log is about: its requests, and links to the time around it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import pasted, requests
from kvtrail.dashboard.table.columns import Moments, Numbers
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import read, tracer
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import request_labels, table

SEARCH = "search"
"""The session's key for the field of the search."""
ICONS = {"requests": "list", "live": "timeline", "findings": "report"}


def about_text(text: str) -> None:
    """Draw what is known of a text. It is not refreshed: a text does not change."""
    asked = text[: pasted.MAX_TEXT]

    def ask() -> Row:
        return tracer().search(asked)

    found = read(ask, key=f"search {asked!r}")
    if found is None:
        return
    now_ns = time.time_ns()
    st.markdown(pasted.sentence(found, now_ns=now_ns))
    if found["requests"]:
        table(
            requests.request_rows(found["requests"], now_ns=now_ns),
            key="requests_of_text",
            links=[("request", request_query(each)) for each in found["requests"]],
            note="Click a row to open it.",
            formats={
                **request_labels(),
                "Started": Moments(label="Started (UTC)"),
                "Duration": Numbers(format="%.3f s"),
                "Waited": Numbers(format="%.3f s"),
            },
        )
    with st.container(horizontal=True, gap="small"):
        for page, label, query in pasted.links(found, picker.current()):
            if page == "requests":  # this page: a link would keep the text in its field
                icon = f":material/{ICONS[page]}:"
                st.button(label, icon=icon, key="around_text", type="tertiary", on_click=_instead, args=(query,))
            else:
                link(page, label, icon=ICONS[page], query=query)


def _instead(query: Mapping[str, str]) -> None:
    """Narrow this page down, without the text."""
    st.session_state[SEARCH] = ""
    address.change(query)  # Streamlit itself takes the text out of it
