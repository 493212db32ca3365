"""Silences: the form for another one, those that are active, each with a button that ends it, and those that have ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway, TracerRefused
from kvtrail.dashboard.command import HEADER_VARIABLE
from kvtrail.dashboard.content import silences as content
from kvtrail.dashboard.content import text
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.tables import table
from kvtrail.dashboard.views.widgets import when_pressed
from kvtrail.tracer.model.silences import MATCHERS, MAX_BY, MAX_WHY
from kvtrail.tracer.model.words import some

ANY = ""
MOST = 20
"""Active silences that are shown outside of the expander."""
REPORT, BY = "silence_report", "silenced_by"
"""The session's keys for what the last change came to, and for who made the last silence."""
REPORTED_S = 60
"""How long that is shown."""


def form() -> None:
    """The form for a silence. The address fills in its matchers, so that links can."""
    try:
        choices = content.choices(tracer().rules(), tracer().fleet()["engines"], tracer().findings_trend()["choices"])
    except TracerAway:
        return  # the list below shows the error
    given = {name: value for name, value in address.query().items() if name in MATCHERS}
    with st.form(f"silence {sorted(given.items())}", border=True):
        st.markdown("**Silence findings** that meet all of these")
        with st.container(key="matchers", horizontal=True, gap="small"):
            matchers = {name: _choose(name, choices[name], given.get(name, ANY)) for name in MATCHERS}
        with st.container(key="about", horizontal=True, gap="small"):
            lasts = st.selectbox(
                "For how long", list(content.LASTS), index=list(content.LASTS).index("1 week"), width=190
            )
            why = st.text_input("Why they are known", max_chars=MAX_WHY, placeholder="the issue, and what fixes it")
            by = st.text_input("By whom", max_chars=MAX_BY, value=_user(), width=190)
        if st.form_submit_button("Silence", icon=":material/notifications_off:", type="primary"):
            st.session_state[BY] = by
            asked = content.asked(matchers, lasts=content.LASTS[lasts], why=why, by=by, now_ns=time.time_ns())
            _change(lambda: tracer().silence(asked))


def _choose(name: str, choices: Mapping[str, str], given: str) -> str:
    texts = {ANY: "any", **choices, **({given: choices.get(given, given)} if given else {})}
    options = list(texts)
    return str(st.selectbox(content.LABELS[name], options, index=options.index(given), format_func=texts.__getitem__))


def _user() -> str:
    """Who made the last silence, or whom the login's proxy names."""
    header = os.environ.get(HEADER_VARIABLE, "")
    return str(st.session_state.get(BY) or (st.context.headers.get(header) if header else "") or "")


def _change(make: Callable[[], Row]) -> None:
    try:
        st.session_state[REPORT] = (time.time(), "done", content.report(make()))
    except (TracerAway, TracerRefused) as error:
        st.session_state[REPORT] = (time.time(), "failed", str(error))


@st.fragment(run_every=SLOW_S)
def page() -> None:
    """Draw the silences, again at each refresh."""
    answer = read(lambda: (tracer().silences(), tracer().fleet()["engines"]), key="silences")
    at_s, outcome, report = st.session_state.get(REPORT, (0.0, "", ""))
    if time.time() - at_s < REPORTED_S:
        (st.success if outcome == "done" else st.error)(text.plain(report))
    if answer is None:
        return
    every, engines = answer
    names = {engine["engine"]: str(engine["name"]) for engine in engines}
    active = [each for each in every if each["is_active"]]
    over = [each for each in every if not each["is_active"]]
    st.subheader("Active", anchor=False)
    if not active:
        st.caption("None: all findings count, and alert.")
    for each in active[:MOST]:
        card(each, names)
    if rest := active[MOST:]:
        with st.expander(f"{some(len(rest), 'more silence')}"):
            for each in rest:
                card(each, names)
    ended(over, names)


def card(silence: Row, names: Mapping[str, str]) -> None:
    """An active silence, and the button that ends it."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"silence_{silence['id']}"):
        with st.container(gap="small"):
            st.markdown(f"**{text.plain(content.covers(silence, names))}**: {text.plain(silence['why'])}")
            st.caption(text.plain(content.about(silence)))
        st.button(
            "End now",
            key=f"end_{silence['id']}",
            on_click=when_pressed(lambda: _change(lambda: tracer().end_silence(silence["id"]))),
            width="content",
        )


def ended(over: Sequence[Row], names: Mapping[str, str]) -> None:
    """The silences that have ended: they have no effect."""
    if not over:
        return
    st.subheader("Ended", anchor=False)
    table(
        content.ended_rows(over, names),
        key="ended",
        note="They have no effect any more, and stay listed.",
        widths={"Covered": 330, "Why": 330, "By": 110, "Began (UTC)": 130, "Ended (UTC)": 130},
    )


picker.heading("Silences", timed=False)
st.caption(
    "A silence says that somebody knows about findings: they stay on every page, marked, the first page counts them apart,"
    " and the alerts leave them out. It deletes nothing."
)
form()
page()
