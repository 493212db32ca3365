"""Parts of the page about one request: badges, axis switch, block tables, unknown request."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import blocks
from kvtrail.dashboard.content.requests import status
from kvtrail.dashboard.views.cards import badge
from kvtrail.dashboard.views.links import link

BY_TIME, BY_STEP = "time", "steps"
"""The axes of a request's charts."""


def request_badges(request: Row) -> None:
    """A request's status and verdict."""
    badge(status(request))
    badge(request["verdict"], label=f"verdict: {request['verdict']}")


def axis_switch(title: str) -> str:
    """A heading for charts with a switch; returns its choice, which the address holds: `BY_TIME` or `BY_STEP`."""
    # The switch is on the left; on the right a chart's toolbar would cover it.
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.subheader(title, width="content", anchor=False)
        return st.segmented_control(
            "Axis", (BY_TIME, BY_STEP), default=BY_TIME, key="axis", bind="query-params", required=True,
            label_visibility="collapsed", width="content",
        )  # fmt: skip


def block_table(step: Row, timeline: Row, *, title: str = "Its blocks") -> None:
    """The blocks that a step names, by KV cache group; nothing for a step that names none."""
    rows = blocks.rows(step, timeline.get("groups") or ())
    if rows:
        with st.expander(f"{title}: {blocks.summary(step)}"):
            st.table(rows, border="horizontal", hide_index=True)


def unknown_request(which: str) -> None:
    """The tracer does not know the request that the address names."""
    st.header("Request not known", anchor=False)
    st.markdown(
        f"The tracer knows no request {which}. It may be older than the tracer's retention, or its first spans have not"
        " arrived yet; this page retries every 2 s."
    )
    link("requests", "All requests")
