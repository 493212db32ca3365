"""Parts of the pages about one request: badges, account, axis switch, unknown request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import blocks, text
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


def account_table(rows: Iterable[Row], *, headings: tuple[str, str], other: str = "**{}**", **options: Any) -> None:
    """`content.request.account_rows` under two headings; differing values are bold, the second in the format `other`."""
    table = []
    for row in rows:
        name, value, beside = (text.plain(row[each] or "") for each in ("label", "value", "other"))
        if row["differs"]:
            name, value, beside = f"**{name}**", f"**{value}**", other.format(beside)
        table.append({"": name, headings[0]: value, headings[1]: beside})
    st.table(table, border="horizontal", hide_index=True, **options)


def block_table(step: Row, timeline: Row, *, title: str = "Its blocks") -> None:
    """The blocks that a step names, by KV cache group; nothing for a step that names none."""
    rows = blocks.rows(step, timeline.get("groups") or ())
    if rows:
        with st.expander(f"{title}: {blocks.summary(step)}"):
            st.table(rows, border="horizontal", hide_index=True)


def unknown_request(request_id: str, *, trace_id: str = "") -> None:
    """The tracer does not know the request that the address names."""
    st.header("Request not known", anchor=False)
    by_id = f"{text.plain(request_id)}, by its engine's or its external id"
    st.markdown(
        f"The tracer knows no request {by_id if request_id else f'of trace {text.plain(trace_id)}'}. It may be older than"
        " the tracer's retention, or its first spans have not arrived yet; this page retries every 2 s."
    )
    link("requests", "All requests")


def which_request(path: str) -> None:
    """The address names no request."""
    st.header("Which request?", anchor=False)
    or_trace = ", or its trace's as `/request?trace=...`" if path == "request" else ""
    st.markdown(f"This page needs a request's id in its address, as `/{path}?id=...`{or_trace}.")
    link("requests", "Choose one from the list")
