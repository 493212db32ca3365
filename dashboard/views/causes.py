"""Why the tokens of a request were reused or computed: for each admission a bar of its prompt, and its parts in words."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import causes, tokens
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.legend import legend
from kvtrail.dashboard.views.theme import is_dark
from kvtrail.tracer.model.cause_words import headline

MOST = 3
"""Admissions that are shown without being asked for."""


def of_request(timeline: Row) -> None:
    """The section of a request's page; nothing where the tracer tells no causes."""
    entries = timeline["request"].get("causes") or []
    if not entries:
        return
    st.subheader("Why each token was a hit or none", anchor=False, help=TERMS["cause"])
    st.caption("Each part leads to what explains it: the step, the other request, or that moment in *Live*.")
    for entry in entries[:MOST]:
        _admission(entry, timeline, is_alone=len(entries) == 1)
    if rest := entries[MOST:]:
        with st.expander(f"{len(rest)} more admissions after preemptions"):
            for entry in rest:
                _admission(entry, timeline, is_alone=False)


def _admission(entry: Row, timeline: Row, *, is_alone: bool) -> None:
    epoch = "" if is_alone else f"{tokens.run_name(entry['epoch']).capitalize()}: "
    st.markdown(f"{epoch}{headline(entry)}")
    dark = is_dark()
    st.html(legend(causes.names(entry, dark=dark)))
    st.html(causes.waterfall(entry, timeline, dark=dark))
