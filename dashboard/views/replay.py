"""One request step by step: the call, the account after it, and what it let be found; the step is in the address."""

from __future__ import annotations

import time
from typing import Literal

import streamlit as st

from kvtrail.dashboard import replay, replay_keys, tables, wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.figures import account_chart, timeline_chart
from kvtrail.dashboard.views.parts import EVERY_S, finding_card, read, tracer, unknown_request, which_request

STEP = "replay_step"
"""Where the session holds the step. The slider cannot: it is another slider as soon as the request has more steps."""
LEFT = "replay_left"
"""Where it holds when each step was left."""
ECHO_S = 1.5
"""How long a browser may take to draw a step."""


@st.fragment(run_every=EVERY_S)
def page(request_id: str, engine: str) -> None:
    """Draw the page, again and again: a request that runs gets more steps while one looks at the first."""

    def ask() -> tuple[Row | None]:
        return (tracer().request(request_id, engine=engine),)

    answer = read(ask, key=f"replay {request_id} {engine}")
    if answer is None:
        return
    if answer[0] is None:
        unknown_request(request_id)
        return
    show(answer[0])


def show(timeline: Row) -> None:
    """The request at the step that is chosen."""
    steps = len(timeline["steps"])
    if not steps:
        st.info("Nothing is stored of this request's steps any more: the tracer has let go of its spans.")
        return
    step = st.session_state[STEP] = replay.clamped(st.session_state[STEP], steps=steps)
    found = replay.found_at(timeline)
    heading(timeline)
    controls(step, steps, found)
    if st.query_params.get("step") != str(step):
        st.query_params["step"] = str(step)
    left, right = st.columns([2, 1], gap="large")
    with left:
        happening(timeline, step, found)
    with right:
        account(timeline, step)
    st.altair_chart(timeline_chart(timeline, by_step=True, at=step), key="replay_timeline")
    st.altair_chart(account_chart(timeline, by_step=True, at=step), key="replay_account")
    st.caption("The line marks the step. Counts are tokens.")


def heading(timeline: Row) -> None:
    """Whose replay this is, and the way back to all of it at once."""
    request = timeline["request"]
    with st.container(horizontal=True, vertical_alignment="center"):
        name = wording.plain(request["external"] or request["request"])
        st.header(f"Replay of {name}", width="content", anchor=False)
        verdict = f"verdict: {request['verdict']}"
        st.badge(verdict, color=wording.VERDICT_COLORS.get(request["verdict"], "gray"))  # type: ignore[arg-type]
    with st.container(horizontal=True, vertical_alignment="center"):
        query = {"id": request["request"], "engine": request["engine"]}
        st.page_link("views/request.py", label="All of it at once", icon=":material/arrow_back:", query_params=query)
        if sentence := tables.gaps(timeline):
            st.warning(sentence)


def controls(step: int, steps: int, found: dict[int, list[Row]]) -> None:
    """The buttons, and the slider below them: beside them a narrow page would leave it no room."""

    left: dict[int, float] = st.session_state.setdefault(LEFT, {})

    def go(to: int | None) -> None:
        left[st.session_state[STEP]] = time.monotonic()
        st.session_state[STEP] = to

    def slid() -> None:
        # A browser that has not yet drawn the last steps still says where the slider was: that is nobody's wish.
        to = st.session_state["slider"]
        if time.monotonic() - left.get(to, -ECHO_S) >= ECHO_S:
            go(to)

    def button(text: str, name: str, icon: str, *, to: int | None, position: Literal["left", "right"]) -> None:
        # The hint is the button's own: its shortcut would lose a key that is pressed while the page is drawn.
        hint = replay_keys.HINTS[name]
        label = f"{text} {hint}" if to is None else f"{text} :gray[{hint}]"
        st.button(label, key=name, icon=f":material/{icon}:", icon_position=position,
                  disabled=to is None, on_click=go, args=(to,))  # fmt: skip

    before, after = replay.neighbours(found, step=step)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        button("Previous finding", "finding_before", "keyboard_double_arrow_left", to=before, position="left")
        button("Previous", "before", "chevron_left", to=step - 1 if step > 1 else None, position="left")
        button("Next", "after", "chevron_right", to=step + 1 if step < steps else None, position="right")
        button("Next finding", "finding_after", "keyboard_double_arrow_right", to=after, position="right")
    if steps > 1:
        st.session_state["slider"] = step
        st.slider("Step", 1, steps, key="slider", on_change=slid)
    replay_keys.listen(step=step, steps=steps, found=list(found), go=go)


def happening(timeline: Row, step: int, found: dict[int, list[Row]]) -> None:
    """What happened at the step, and what it let be found."""
    told = timeline["steps"][step - 1]
    st.subheader(wording.plain(replay.title(timeline, step=step)), anchor=False)
    st.caption(wording.plain(" · ".join(replay.facts(timeline, step=step, now_ns=time.time_ns()))))
    st.markdown(wording.plain(wording.said(told["name"], told["numbers"])))
    if told["error"]:
        st.error(f"It raised. {wording.plain(told['error'])}")
    for finding in found.get(step, []):
        finding_card(finding, linked=False)
    if told_before := sum(len(held) for number, held in found.items() if number < step):
        st.caption(f"{wording.some(told_before, 'finding')} before this step.")


def account(timeline: Row, step: int) -> None:
    """The account after the step; what the step changed stands out, with its value before."""
    st.subheader("Account after it", anchor=False)
    rows = replay.account_rows(timeline, step=step)
    if not rows:
        st.caption("No account yet: the request has not arrived.")
        return
    st.table(
        [
            {
                "": f"**{row['name']}**" if row["before"] is not None else row["name"],
                "Now": f"**{wording.plain(row['value'])}**"
                if row["before"] is not None
                else wording.plain(row["value"]),
                "Before": "" if row["before"] is None else f":gray[{wording.plain(row['before'])}]",
            }
            for row in rows
        ],
        border="horizontal",
        hide_index=True,
    )


wanted = st.query_params.get("id", "")
# Not in the fragment: whoever comes here by a link means the link's step; afterwards the address follows the step.
st.session_state[STEP] = st.query_params.get("step", "")
if wanted:
    page(wanted, st.query_params.get("engine", ""))
else:
    which_request("replay")
