"""What to do about an alert or a rule: the runbook that the address names, or the list of all."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard import runbook, wording

READABLE = 860
"""Pixels: lines that are longer are hard to follow."""


def show(name: str) -> None:
    """The runbook, and the ways on."""
    text = runbook.text(name)
    if text is None:
        unknown(name)
        return
    if name:
        with st.container(horizontal=True, gap="medium", key="ways"):
            st.page_link("views/runbook.py", label="All runbooks", icon=":material/arrow_back:", query_params={})
            if not name.startswith(runbook.ALERT):
                label, query = "Findings of this rule", {"rule": name}
                st.page_link("views/findings.py", label=label, icon=":material/search:", query_params=query)
    st.container(width=READABLE).markdown(text)


def unknown(name: str) -> None:
    """There is none of that name; perhaps it is a slip."""
    st.header("Runbook not known", anchor=False)
    st.markdown(f"There is no runbook {wording.plain(name)}: no alert and no rule of this version has that name.")
    with st.container(gap="small", key="ways"):
        for each in runbook.meant(name):
            label = f"Did you mean {wording.plain(each)}?"
            st.page_link("views/runbook.py", label=label, icon=":material/arrow_forward:", query_params={"name": each})
        st.page_link("views/runbook.py", label="All runbooks", icon=":material/list:", query_params={})


show(st.query_params.get("name", ""))
