"""Why the tokens of a request were reused or computed: a bar of its prompt for each admission, and a table of its parts."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import causes, tokens
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.legend import bar, legend
from kvtrail.dashboard.views import tables
from kvtrail.dashboard.views.theme import is_dark

MOST = 3
"""Admissions that are shown without being asked for."""


def of_request(timeline: Row) -> None:
    """The section of a request's page; nothing where the tracer tells no causes."""
    entries = timeline["request"].get("causes") or []
    if not entries:
        return
    st.subheader("Why each token was a hit or none", anchor=False, help=TERMS["cause"])
    for entry in entries[:MOST]:
        _admission(entry, timeline, is_alone=len(entries) == 1)
    if rest := entries[MOST:]:
        with st.expander(f"{len(rest)} more admissions after preemptions"):
            for entry in rest:
                _admission(entry, timeline, is_alone=False)


def _admission(entry: Row, timeline: Row, *, is_alone: bool) -> None:
    epoch = "" if is_alone else f"{tokens.run_name(entry['epoch']).capitalize()}: "
    st.markdown(f"{epoch}{causes.headline(entry)}")
    dark = is_dark()
    st.html(legend(causes.names(entry, dark=dark)))
    st.html(bar(*causes.strip(entry, dark=dark)))
    tables.table(
        causes.rows(entry),
        key=f"causes_{entry['epoch']}",
        links=causes.links(entry, timeline),
        ids=[part["start"] for part in entry["parts"]],
        note="The parts of the prompt in their order. Click one to see what explains it.",
        appends=True,
        most_rows=8,
        numbers=("From token", "Tokens"),
        widths={"From token": 90, "Tokens": 80, "Cause": 100, "Why": 640},
    )
