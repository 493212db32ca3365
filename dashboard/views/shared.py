"""What several pages use, from the modules that have it; and tables whose rows are links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.views.answers import EVERY_S, SLOW_S, read, tracer
from kvtrail.dashboard.views.cards import badge, card, cards
from kvtrail.dashboard.views.filters import ANY, choose
from kvtrail.dashboard.views.links import link, request_query, runbook_link
from kvtrail.dashboard.views.of_requests import (
    account_table,
    finding_card,
    request_badges,
    unknown_request,
    which_request,
)
from kvtrail.tracer.model import words

__all__ = [
    "ANY", "EVERY_S", "SLOW_S", "account_table", "badge", "card", "cards", "choose", "finding_card", "link", "read",
    "request_badges", "request_query", "runbook_link", "table", "tracer", "unknown_request", "which_request",
]  # fmt: skip


def table(
    rows: Sequence[Row],
    *,
    key: str,
    most_rows: int = 12,
    links: Sequence[tuple[str, Mapping[str, str]]] | None = None,
    numbers: Iterable[str] = (),
    widths: Mapping[str, int] | None = None,
    formats: Mapping[str, Any] | None = None,
) -> None:
    """A table as high as its rows, `most_rows` at most.

    Columns have `widths` in pixels, `numbers` thousands separators, and others Streamlit's own `formats`.

    `links` has the page and the query that a click on each row opens. A click is looked up in the rows that were on the
    screen when it came: the next refresh may put new ones on top.
    """
    widths = widths or {}
    clicked = st.session_state.pop(f"{key}_clicked", None)
    if clicked is not None:
        page, query = clicked
        st.switch_page(f"views/{page}.py", query_params=query)
    st.session_state[f"{key}_links"] = links

    def click() -> None:
        cells = st.session_state[key]["selection"]["cells"]
        shown = st.session_state.get(f"{key}_links") or []
        if cells and cells[0][0] < len(shown):
            st.session_state[f"{key}_clicked"] = shown[cells[0][0]]

    selection: dict[str, Any] = {"on_select": click, "selection_mode": "single-cell"} if links is not None else {}
    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        height=38 + 35 * min(len(rows), most_rows),
        column_config={
            **{name: st.column_config.Column(width=width) for name, width in widths.items()},
            **{name: st.column_config.NumberColumn(width=widths.get(name), format="localized") for name in numbers},
            **(formats or {}),
        },
        placeholder=words.NOTHING,
        **selection,
    )
