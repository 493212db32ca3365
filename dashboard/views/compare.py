"""Two requests side by side: accounts, charts, and where their stories first differ; both are in the address."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard import compare, wording
from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.figures import account_chart, highest, timeline_chart
from kvtrail.dashboard.views.parts import EVERY_S, opening_table, read, tracer, unknown_request, which_request

PAGE = "views/compare.py"
OFFERED = 50


def choose_other(request_id: str, engine: str) -> str:
    """The request to compare with: one of the latest, or any whose id is typed or pasted."""
    named = st.query_params.get("with", "")
    try:
        latest = tracer().requests(limit=OFFERED)
    except TracerAway:
        latest = []  # the page below says so
    ids = [r["request"] for r in latest if (r["request"], r["engine"]) != (request_id, engine)]
    options = list(dict.fromkeys([*([named] if named else []), *ids]))
    chosen = st.selectbox(
        "Compare with",
        options,
        index=0 if named else None,
        placeholder="Choose one of the latest, or paste a request's id",
        accept_new_options=True,
        width=480,
    )
    if chosen and chosen != named:
        st.query_params["with"] = str(chosen)
        st.query_params.pop("with_engine", None)  # that was another request's
    return str(chosen or "")


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str, other_id: str, other_engine: str) -> None:
    """Draw the page, again and again."""

    def ask() -> tuple[Row | None, Row | None]:
        source = tracer()
        return source.request(request_id, engine=engine), source.request(other_id, engine=other_engine)

    answer = read(ask, key=f"compare {request_id} {engine} {other_id} {other_engine}")
    if answer is None:
        return
    a, b = answer
    for timeline, id_ in ((a, request_id), (b, other_id)):
        if timeline is None:
            unknown_request(id_)
            return
    assert a is not None
    assert b is not None
    verdict(a, b)
    top = max(highest(a), highest(b))
    # Part by part, so that the same part of both stands at the same height.
    for letter, timeline, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        with column:
            side(letter, timeline)
    for letter, timeline, column in zip("AB", (a, b), st.columns(2, gap="large"), strict=True):
        column.altair_chart(account_chart(timeline, by_step=True, top=top), key=f"account_{letter}")
    accounts(a, b)
    steps(a, b)


def verdict(a: Row, b: Row) -> None:
    """Where they first differ, before all else."""
    difference, other = compare.first_difference(a, b), compare.first_other_call(a, b)
    if difference is None:
        st.success("Both tell the same story: no call says anything else.")
        return
    lines = [f"**They first differ:** {wording.plain(difference.sentence)}."]
    if other is None:
        lines.append("Both go the same way: the same is called, with other numbers.")
    elif other != difference:
        lines.append(f"**They first go another way:** {wording.plain(other.sentence)}.")
    st.info("\n\n".join(lines))


def side(letter: str, timeline: Row) -> None:
    """One of the two: its name, how it stands, and its timeline."""
    request = timeline["request"]
    with st.container(horizontal=True, vertical_alignment="center"):
        name = wording.plain(request["external"] or request["request"])
        st.subheader(f"{letter}: {name}", width="content", anchor=False)
        st.badge(request["status"], color=wording.STATUS_COLORS.get(request["status"], "gray"))  # type: ignore[arg-type]
        drift = f"verdict: {request['verdict']}"
        st.badge(drift, color=wording.VERDICT_COLORS.get(request["verdict"], "gray"))  # type: ignore[arg-type]
    query = {"id": request["request"], "engine": request["engine"]}
    st.page_link("views/request.py", label=f"Open {letter}", icon=":material/arrow_forward:", query_params=query)
    st.altair_chart(timeline_chart(timeline, by_step=True), key=f"timeline_{letter}")


def accounts(a: Row, b: Row) -> None:
    """Both accounts as they stand; what differs stands out."""
    st.subheader("Accounts", anchor=False)
    st.table(
        [
            {
                "": f"**{row['name']}**" if row["differs"] else row["name"],
                "A": f"**{wording.plain(row['a'])}**" if row["differs"] else wording.plain(row["a"]),
                "B": f"**{wording.plain(row['b'])}**" if row["differs"] else wording.plain(row["b"]),
            }
            for row in compare.account_rows(a, b)
        ],
        border="horizontal",
        hide_index=True,
        width=480,
    )


def steps(a: Row, b: Row) -> None:
    """Both stories, step beside step."""
    st.subheader("Step by step", anchor=False)
    st.caption(
        "What vLLM and the connector said of tokens. Block ids, keys and times are each request's own. Click a step of A."
    )
    rows = compare.step_rows(a, b)
    whose = {"id": a["request"]["request"], "engine": a["request"]["engine"]}
    opening_table(
        rows,
        key="compare_steps",
        opens=[("views/replay.py", {**whose, "step": str(row["A step"] or 1)}) for row in rows],
        columns={
            "": st.column_config.TextColumn("", width=70),
            "A step": st.column_config.NumberColumn("A step", width=65),
            "A": st.column_config.TextColumn("A", width=440),
            "B step": st.column_config.NumberColumn("B step", width=65),
            "B": st.column_config.TextColumn("B", width=440),
        },
        most_rows=16,
    )


wanted = st.query_params.get("id", "")
if not wanted:
    which_request("compare")
else:
    st.header("Compare two requests", anchor=False)
    of = st.query_params.get("engine", "")
    other = choose_other(wanted, of)
    if other:
        page(wanted, of, other, st.query_params.get("with_engine", ""))
    else:
        st.caption(
            f"A is {wording.plain(wanted)}. Choose B above: their accounts, their charts and the first difference follow."
        )
