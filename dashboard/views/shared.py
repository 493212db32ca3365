"""What several pages use: the tracer's answer, tables whose rows are links, cards, findings, and the time range."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import streamlit as st

from kvtrail.dashboard.client import DEFAULT_URL, Row, Tracer, TracerAway
from kvtrail.dashboard.command import CA_VARIABLE, TOKEN_VARIABLE, TRACER_VARIABLE
from kvtrail.dashboard.content import fleet, runbook, text
from kvtrail.dashboard.content.badges import COLORS
from kvtrail.dashboard.content.time_range import DEFAULT, RANGES, TimeRange, time_range
from kvtrail.tracer.model import words

EVERY_S = 2
"""How often a page asks the tracer again; `SLOW_S` for pages about long time ranges."""
SLOW_S = 5
ANY = "any"

Answer = TypeVar("Answer")


@st.cache_resource
def tracer() -> Tracer:
    """The client, shared by all sessions."""
    token_file, ca = (
        Path(os.environ[name]) if os.environ.get(name) else None for name in (TOKEN_VARIABLE, CA_VARIABLE)
    )
    return Tracer(os.environ.get(TRACER_VARIABLE, DEFAULT_URL), token_file=token_file, ca=ca)


def read(ask: Callable[[], Answer], *, key: str) -> Answer | None:
    """The tracer's answer. If it does not answer: a banner, and the last answer if it was to the same question `key`.

    So nobody loses what they were reading when the tracer restarts.
    """
    # An element in either case, so that what follows keeps its place and is not redrawn.
    banner = st.empty()
    asked, known = st.session_state.get("last_answer", (None, None))
    last: Answer | None = known if asked == key else None
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
    # One place for all questions: a search asks many while it is typed, and their answers would pile up.
    st.session_state["last_answer"] = (key, answer)
    return answer


def link(page: str, label: str, *, icon: str = "", query: Mapping[str, str] | None = None) -> None:
    """A link to a page, with one of Google's Material icons."""
    icon_name = f":material/{icon}:" if icon else None
    st.page_link(f"views/{page}.py", label=label, icon=icon_name, query_params=query or {})


def request_query(request: Row, *, step: int | None = None) -> dict[str, str]:
    """The address parameters that name a request, from its row or from a finding; and a step of its replay."""
    query = {"id": request["request"], "engine": request["engine"]}
    return query if step is None else {**query, "step": str(step)}


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


def recorder_table(recorders: Iterable[Row], *, now_ns: int, most: int | None = None) -> None:
    """The recorders, those that lost something on top."""
    st.subheader("Recorders", anchor=False)
    rows = fleet.recorder_rows(recorders, now_ns=now_ns)
    if not rows:
        st.caption("None seen since this tracer started.")
        return
    st.caption(
        "One for each process of an engine. Lag: from the end of the latest event, by the recorder's clock, to its arrival,"
        " by the tracer's. Gaps: events that have not arrived, by their numbers."
        + (f" The first {most} of {words.count(len(rows))}." if most and len(rows) > most else "")
    )
    formats = {
        "Lag": st.column_config.TextColumn(alignment="right"),
        "Last seen": st.column_config.TextColumn("Last seen (UTC)"),
    }
    numbers = ("Received", "Dropped", "Gaps")
    widths = {"Recorder": 150, "Engine": 175, "State": 130}
    table(rows[:most], key="recorders", numbers=numbers, widths=widths, formats=formats)


def cards(size: Literal["small", "middle", "large"]) -> Any:
    """A container for a row of cards; style.css makes them equally wide, from edge to edge."""
    return st.container(horizontal=True, gap="small", key=f"cards-{size}")


def card(name: str, value: str, note: str | None = None, **options: Any) -> None:
    """A number with its name, and a grey note below it."""
    st.metric(name, value, note, delta_color="off", delta_arrow="off", border=True, **options)


def badge(name: str, *, label: str | None = None) -> None:
    """A status, verdict or severity in its colour."""
    st.badge(label or name, color=COLORS.get(name, "gray"))  # type: ignore[arg-type]


def request_badges(request: Row) -> None:
    """A request's status and verdict."""
    badge(request["status"])
    badge(request["verdict"], label=f"verdict: {request['verdict']}")


def account_table(rows: Iterable[Row], *, headings: tuple[str, str], other: str = "**{}**", **options: Any) -> None:
    """`content.request.account_rows` under two headings; values that differ are bold, the second one as `other` says."""
    table = []
    for row in rows:
        name, value, beside = (text.plain(row[each] or "") for each in ("name", "value", "other"))
        if row["differs"]:
            name, value, beside = f"**{name}**", f"**{value}**", other.format(beside)
        table.append({"": name, headings[0]: value, headings[1]: beside})
    st.table(table, border="horizontal", hide_index=True, **options)


def unknown_request(request_id: str, *, trace_id: str = "") -> None:
    """The tracer does not know the request that the address names."""
    st.header("Request not known", anchor=False)
    by_id = f"{text.plain(request_id)}, by its engine's or its external id"
    st.markdown(
        f"The tracer knows no request {by_id if request_id else f'of trace {text.plain(trace_id)}'}. It may be older than"
        " what the tracer retains, or its first spans are still on their way; this page looks again every 2 s."
    )
    link("requests", "All requests")


def which_request(path: str) -> None:
    """The address names no request."""
    st.header("Which request?", anchor=False)
    or_trace = ", or its trace's as `/request?trace=...`" if path == "request" else ""
    st.markdown(f"This page needs a request's id in its address, as `/{path}?id=...`{or_trace}.")
    link("requests", "Choose one from the list")


def finding_card(finding: Row, *, linked: bool, step: int | None = None, request: Row | None = None) -> None:
    """A finding in words: what it can cause at worst, and what happened. `linked` adds a link to its request, `step` one to
    that step of its replay, `request` what became of it."""
    now_ns = time.time_ns()
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            badge(finding["severity"], label=f"worst case: {finding['severity']}")
            st.markdown(f"**{text.plain(finding['title'])}**", width="content")
        count = finding["count"]
        when = f"{text.clock(finding['first_ns'], now_ns=now_ns)} UTC"
        if count > 1:
            when = f"from {when} to {text.clock(finding['last_ns'], now_ns=now_ns)} UTC"
        fate = ""
        if request is not None and (request["ended_ns"] is not None or request["status"] == "failed"):
            fate = f"; {words.became(request['status'], request['outcome'], request['error'])}"
        st.caption(
            f"rule {finding['rule']}, epoch {finding['epoch']}, seen {words.ending(count)}, {when},"
            f" {words.healed(finding['healed'], count=count)}{text.plain(fate)}"
        )
        st.markdown(text.plain(finding["explanation"]))
        if not linked:
            with st.expander("What to do, and the numbers"):
                st.markdown(text.plain(finding["hint"]))
                numbers = {name.replace("_", " "): words.value(value) for name, value in finding["numbers"].items()}
                st.table([numbers], border="horizontal", hide_index=True, width="content")
        with st.container(horizontal=True, gap="medium"):
            if linked:
                label = f"Open request {text.plain(finding['request'])}"
                link("request", label, icon="arrow_forward", query=request_query(finding))
            if step is not None:
                label = f"Replay from step {words.count(step)}, where it shows"
                link("replay", label, icon="play_arrow", query=request_query(finding, step=step))
            runbook_link(finding["rule"])


def runbook_link(rule: str) -> None:
    """A link to the rule's runbook; none if the tracer is newer than the dashboard and has a rule that it does not know."""
    if rule in runbook.names():
        link("runbook", "Runbook", icon="menu_book", query={"name": rule})


def choose_range() -> str:
    """The range back from now; it has no effect while the address pins a window, and says so by being disabled."""
    key = _follow("range", [*RANGES], default=DEFAULT)
    is_pinned = current_range(DEFAULT).pinned
    st.segmented_control(
        "Window", [*RANGES], key=key, required=True, on_change=_write, args=("range", key, DEFAULT), disabled=is_pinned
    )
    return str(st.session_state[key])


def current_range(chosen: str) -> TimeRange:
    """The range that the address pins, else the chosen one up to now."""
    since, until = (st.query_params.get(name, "") for name in ("since", "until"))
    return time_range(chosen=chosen, since=since, until=until, now_ns=time.time_ns())


def pin_control(shown: TimeRange) -> None:
    """A line that names the range, with the button that pins it, or lets it follow the clock again."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(text.plain(shown.text(now_ns=time.time_ns())), width="content")
        if shown.pinned:
            if st.button("Follow the clock again", key="unpin", icon=":material/schedule:", type="tertiary"):
                for name in shown.address:
                    st.query_params.pop(name, None)
                st.rerun()
        else:
            hint = "Put both ends of this window in the address, to share it: it then stays as it is."
            if st.button("Pin this window", key="pin", icon=":material/keep:", type="tertiary", help=hint):
                st.query_params.update(shown.address)
                st.rerun()


def choose(label: str, choices: Sequence[str], *, name: str, shown: Mapping[str, str] | None = None) -> str:
    """A filter's choice, empty for any. What the address names is a choice even if nothing in the range has it. `shown` has
    the texts of choices that are not shown as they are."""
    texts = shown or {}
    options = list(dict.fromkeys([ANY, *choices, st.query_params.get(name, ANY)]))
    key = _follow(name, options, default=ANY)
    st.selectbox(
        label, options, key=key, on_change=_write, args=(name, key, ANY), format_func=lambda text: texts.get(text, text)
    )
    chosen = st.session_state[key]
    return "" if chosen in (None, ANY) else str(chosen)


def _follow(name: str, options: Sequence[str], *, default: str) -> str:
    """Set a widget to what the address says, and return its key.

    Streamlit's own `bind` would forbid links from this page to another whose address has the same name in it.
    """
    key, named = f"filter_{name}", st.query_params.get(name, default)
    st.session_state[key] = named if named in options else default
    return key


def _write(name: str, key: str, default: str) -> None:
    """Write the choice into the address; the default is left out."""
    chosen = st.session_state[key]
    if chosen in (None, default):
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = chosen
