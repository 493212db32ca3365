"""Links from page to page. What a page shows is in its address, so a link names it too."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import runbook


def link(page: str, label: str, *, icon: str = "", query: Mapping[str, str] | None = None) -> None:
    """A link to a page, with one of Google's Material icons."""
    icon_name = f":material/{icon}:" if icon else None
    st.page_link(f"views/{page}.py", label=label, icon=icon_name, query_params=query or {})


def request_query(request: Row, *, step: int | None = None) -> dict[str, str]:
    """The address parameters that name a request, from its row or from a finding; and a step of its replay."""
    query = {"id": request["request"], "engine": request["engine"]}
    return query if step is None else {**query, "step": str(step)}


def runbook_link(rule: str) -> None:
    """A link to the rule's runbook; none if the tracer is newer than the dashboard and has a rule that it does not know."""
    if rule in runbook.names():
        link("runbook", "Runbook", icon="menu_book", query={"name": rule})
