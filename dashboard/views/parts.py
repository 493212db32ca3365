"""What the pages share: the client, reading with the banner for a tracer that is away, tables whose rows open
pages, and a finding in words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import streamlit as st

from kvtrail.dashboard import runbook, wording
from kvtrail.dashboard.client import DEFAULT_URL, Row, Tracer, TracerAway
from kvtrail.dashboard.command import TRACER_VARIABLE

EVERY_S = 2
"""How often a page asks the tracer again."""

Answer = TypeVar("Answer")


@st.cache_resource
def tracer() -> Tracer:
    """The one client, shared by all sessions."""
    return Tracer(os.environ.get(TRACER_VARIABLE, DEFAULT_URL))


def read(ask: Callable[[], Answer], *, key: str) -> Answer | None:
    """The tracer's answer. While it is away: a banner, and the last answer, if it was to the same question (`key`).

    Keeping the last answer on the page means that nobody loses what they were reading to a restart of the tracer.
    """
    # An element of its own in either case, so that what follows keeps its place and is not drawn anew.
    banner = st.empty()
    asked, kept = st.session_state.get("last_answer", (None, None))
    last: Answer | None = kept if asked == key else None
    try:
        if last is None:
            with banner, st.spinner("Asking the tracer ..."):
                answer = ask()
            banner.empty()
        else:
            answer = ask()
    except TracerAway as away:
        stale = "" if last is None else " Below is what was last known."
        banner.error(f"{away} Trying again every {EVERY_S} s.{stale}")
        return last
    # One place for all questions: a search that is typed asks many, and their answers would pile up.
    st.session_state["last_answer"] = (key, answer)
    return answer


def opening_table(
    rows: Sequence[Row],
    *,
    key: str,
    opens: Sequence[tuple[str, Mapping[str, str]]],
    columns: Mapping[str, Any],
    most_rows: int,
) -> None:
    """A table of which a click on a row opens a page: `opens` has each row's page and its address.

    What was clicked is looked up in the rows that were on the screen then: the refresh that follows the click may bring new
    ones on top.
    """
    chosen = st.session_state.pop(f"{key}_open", None)
    if chosen is not None:
        path, query = chosen
        st.switch_page(path, query_params=query)
    st.session_state[f"{key}_shown"] = opens

    def remember() -> None:
        cells = st.session_state[key]["selection"]["cells"]
        shown = st.session_state.get(f"{key}_shown", [])
        if cells and cells[0][0] < len(shown):
            st.session_state[f"{key}_open"] = shown[cells[0][0]]

    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        height=min(38 + 35 * len(rows), 38 + 35 * most_rows),
        column_config=columns,
        on_select=remember,
        selection_mode="single-cell",
        placeholder=wording.NOTHING,
    )


def cards(size: Literal["small", "middle", "large"]) -> Any:
    """A row of numbers; style.css makes the cards equally wide, in every row from edge to edge."""
    return st.container(horizontal=True, gap="small", key=f"cards-{size}")


def unknown_request(request_id: str, *, trace_id: str = "") -> None:
    """The tracer has never heard of it, or has let it go."""
    st.header("Request not known", anchor=False)
    which = (
        f"{wording.plain(request_id)}, by its engine's or its external id"
        if request_id
        else (f"of trace {wording.plain(trace_id)}")
    )
    st.markdown(
        f"The tracer knows no request {which}. It may be older than what the tracer retains, or its first spans are still on"
        " their way; this page looks again every 2 s."
    )
    st.page_link("views/requests.py", label="All requests")


def which_request(path: str) -> None:
    """The address names no request."""
    st.header("Which request?", anchor=False)
    or_trace = ", or its trace's as `/request?trace=...`" if path == "request" else ""
    st.markdown(f"This page needs a request's id in its address, as `/{path}?id=...`{or_trace}.")
    st.page_link("views/requests.py", label="Choose one from the list")


def finding_card(finding: Row, *, linked: bool, step: int | None = None) -> None:
    """A finding in words: what, how bad, how often, and the explanation; `linked` leads to its request, `step` to the
    step of its replay."""
    now_ns = time.time_ns()
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(finding["severity"], color=wording.SEVERITY_COLORS.get(finding["severity"], "gray"))  # type: ignore[arg-type]
            st.markdown(f"**{wording.plain(finding['title'])}**", width="content")
        span = f"{wording.clock(finding['first_ns'], now_ns=now_ns)} UTC"
        if finding["count"] > 1:
            span = f"from {span} to {wording.clock(finding['last_ns'], now_ns=now_ns)} UTC"
        st.caption(
            f"rule {finding['rule']}, epoch {finding['epoch']}, seen {wording.ending(finding['count'])}, {span},"
            f" {wording.healed(finding)}"
        )
        st.markdown(wording.plain(finding["explanation"]))
        if not linked:
            with st.expander("What to do, and the numbers"):
                st.markdown(wording.plain(finding["hint"]))
                numbers = {name.replace("_", " "): _number(value) for name, value in finding["numbers"].items()}
                st.table([numbers], border="horizontal", hide_index=True, width="content")
        whose = {"id": finding["request"], "engine": finding["engine"]}
        with st.container(horizontal=True, gap="medium"):
            if linked:
                label = f"Open request {wording.plain(finding['request'])}"
                st.page_link("views/request.py", label=label, icon=":material/arrow_forward:", query_params=whose)
            if step is not None:
                label, query = f"Replay from step {wording.count(step)}, where it shows", {**whose, "step": str(step)}
                st.page_link("views/replay.py", label=label, icon=":material/play_arrow:", query_params=query)
            runbook_link(finding["rule"])


def runbook_link(rule: str) -> None:
    """The way to what a person can do about findings of a rule; none where the tracer has a rule that is newer than this."""
    if rule in runbook.names():
        query = {"name": rule}
        st.page_link("views/runbook.py", label="Runbook", icon=":material/menu_book:", query_params=query)


def _number(value: object) -> str:
    return wording.count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
