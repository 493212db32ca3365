"""Two groups of requests side by side: their times, and why their tokens were reused or computed."""

from __future__ import annotations

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import compare_groups, latency, requests
from kvtrail.dashboard.content.legend import legend
from kvtrail.dashboard.views import conditions, picker, tables
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.charts import draw_chart
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import ANY, choose, filter_bar, one_of
from kvtrail.dashboard.views.links import link
from kvtrail.dashboard.views.tables import number_column

OF = "of"
"""The name of the measure in the address."""
EXAMPLES = {"a": "A: duration > 2s", "b": "B: duration <= 2s"}
"""The names of the groups' conditions in the address, and what their fields show while they are empty."""


@st.fragment(run_every=SLOW_S)
def page(of: str, a: dict[str, str], b: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> tuple[Row, Row]:
        source = tracer()
        measures = (source.latency_measures(**requests.filters(each), **shown.query) for each in (a, b))
        return next(measures), next(measures)

    answer = read(ask, key=f"groups {shown.field()} {of} {a} {b}")
    if answer is None:
        return
    st.markdown(compare_groups.summary(*answer, (a, b)))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(legend(compare_groups.legend_entries(*answer, dark=is_dark())))
        for letter, chosen in zip(compare_groups.LETTERS, (a, b), strict=True):
            names = {"on" if name == "engine" else name: value for name, value in chosen.items()}
            link("requests", f"Requests of {letter}", icon="arrow_forward", query={**shown.address, **names})
    if not all(each["requests"] for each in answer):
        return
    st.caption(f"The share of each group that took less than this long: {latency.MEASURES[of]}.")
    draw_chart(compare_groups.cumulative(*answer, of, dark=is_dark()), key=f"cumulative {of}")
    st.subheader("Times", anchor=False)
    tables.table(
        compare_groups.time_rows(*answer), key="times", note="Each time by itself, of the requests that have it."
    )
    st.subheader("Why tokens were reused or computed", anchor=False)
    shares = {f"{letter}: share": number_column("cause", format="%.1f %%") for letter in compare_groups.LETTERS}
    tables.table(
        compare_groups.cause_rows(*answer),
        key="causes",
        note="Shares of the tokens asked for, over all admissions; the largest difference first.",
        most_rows=20,
        numbers=[f"{letter}: tokens" for letter in compare_groups.LETTERS],
        formats=shares,
    )


def filters() -> tuple[str, dict[str, str], dict[str, str]]:
    """The measure that is drawn, and the filters of both groups, as `content.requests.filters` takes them."""
    try:
        engines = requests.choices(tracer().fleet()["engines"])["engine"]
    except TracerAway:
        engines = {}  # the page below shows the error
    sides = []
    with filter_bar():
        for name, example in EXAMPLES.items():
            chosen = {
                "engine": _of_side(name, "engine", engines, parameter="on"),
                "status": _of_side(name, "status", requests.ENDS, parameter="status"),
                "where": conditions.field(f"Conditions of {name.upper()}", name=name, example=example),
            }
            sides.append({key: value for key, value in chosen.items() if value})
        times = latency.MEASURES
        of = one_of("Time", list(times), name=OF, default=latency.FIRST, text=times.__getitem__)
    return of, sides[0], sides[1]


def _of_side(side: str, what: str, texts: dict[str, str], *, parameter: str) -> str:
    """The choice for one of the groups."""
    shown = {value: f"{side.upper()}: {text}" for value, text in {ANY: f"any {what}", **texts}.items()}
    label = f"{what.capitalize()} of {side.upper()}"
    return choose(label, list(texts), name=f"{parameter}_{side}", shown=shown)


picker.heading("Compare groups")
measure, group_a, group_b = filters()
if conditions.are_valid(group_a.get("where", ""), group_b.get("where", "")):
    if group_a == group_b:
        st.info(
            "Both groups have the same filters. Give one of them another engine, or conditions such as `duration > 2s`."
        )
    else:
        page(measure, group_a, group_b)
