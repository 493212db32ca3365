"""The runbook of the alert or rule that the address names, or the list of all."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.content import runbook
from kvtrail.dashboard.content.text import plain
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.links import link

TEXT_WIDTH_PX = 860
"""Longer lines are hard to read."""


def show(name: str) -> None:
    """The runbook, with links to the list and to its rule's findings."""
    text = runbook.text(name)
    if text is None:
        unknown(name)
        return
    if name:
        with st.container(horizontal=True, gap="medium", key="ways"):
            link("runbook", "All runbooks", icon="arrow_back")
            if not name.startswith(runbook.ALERT):
                link("findings", "Findings of this rule", icon="search", query={"rule": name})
    st.container(width=TEXT_WIDTH_PX).markdown(text)


def unknown(name: str) -> None:
    """A note that the runbook does not exist, with similar names."""
    st.header("Runbook not known", anchor=False)
    st.markdown(f"There is no runbook {plain(name)}: no alert and no rule of this version has that name.")
    with st.container(gap="small", key="ways"):
        for each in runbook.similar(name):
            link("runbook", f"Did you mean {plain(each)}?", icon="arrow_forward", query={"name": each})
        link("runbook", "All runbooks", icon="list")


show(address.query().get("name", ""))
