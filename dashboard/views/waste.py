"""What was computed although a cache had held it: the most expensive prefixes, who pays, and the requests."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import waste
from kvtrail.dashboard.table.columns import Column, Moments
from kvtrail.dashboard.views import address, picker
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.filters import choose, filter_bar
from kvtrail.dashboard.views.links import request_query
from kvtrail.dashboard.views.tables import number_column, table

FILTERS = (*waste.KINDS, waste.PREFIX)


def filters() -> dict[str, str]:
    """The filters in use; their choices are those of the range."""
    try:
        every = tracer().waste(**picker.current().query)
    except TracerAway:
        every = {f"by_{kind}": [] for kind in FILTERS}  # the page below shows the error
    given = {}
    with filter_bar():
        for kind in waste.KINDS:
            shown = {str(each[kind]): waste.label(every, kind, each) for each in every[f"by_{kind}"] if each[kind]}
            if kind == "cause":
                shown = {cause: waste.cause_name(cause) for cause in shown}
            given[kind] = choose(kind.capitalize(), list(shown), name=waste.ADDRESS.get(kind, kind), shown=shown)
        prefixes = [each[waste.PREFIX] for each in every["by_prefix"]]
        given[waste.PREFIX] = choose("Prefix", prefixes, name=waste.PREFIX)
    return {name: value for name, value in given.items() if value}


@st.fragment(run_every=SLOW_S)
def page(given: dict[str, str]) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> Row:
        return tracer().waste(**given, **shown.query)

    answer = read(ask, key=f"waste {shown.field()} {given}")
    if answer is None:
        return
    st.markdown(waste.sentence(answer))
    if not answer["whole"]["tokens"]:
        st.caption(
            f"From {shown.text(now_ns=time.time_ns())}. It needs block hashes and vLLM's cache events, which are recorded at"
            " level `detailed`. Sums of a sidecar before this version are only on *Efficiency*."
        )
        return
    if given:
        icon = ":material/filter_alt_off:"
        args = (shown.address,)
        st.button("Without filters", icon=icon, key="all_waste", type="tertiary", on_click=address.replace, args=args)
        requests(answer)
    query = {**shown.address, **{waste.ADDRESS.get(name, name): value for name, value in given.items()}}
    prefixes(answer, query)
    places(answer, query)
    if not given:
        requests(answer)


def prefixes(answer: Row, query: dict[str, str]) -> None:
    """The most expensive prefixes."""
    st.subheader("Most expensive prefixes", anchor=False)
    rows = waste.prefix_rows(answer)
    if not rows:
        st.caption("Not known: the hashes of these prompts' blocks are not recorded.")
        return
    table(
        rows,
        key="waste_prefixes",
        links=waste.narrowed(answer, waste.PREFIX, query),
        note="A prefix is named by the hash of the first block that was lost: prompts that begin alike and lose the same"
        " beginning share it. Click a row to see its requests.",
        formats=formats() | {"Latest": clock()},
    )


def places(answer: Row, query: dict[str, str]) -> None:
    """Who computes it again: tenants (there may be many) beside all else."""
    left, right = st.columns(2, gap="medium")
    for kind, heading in waste.KINDS.items():
        with left if kind == "tenant" else right:
            st.subheader(heading, anchor=False)
            links = waste.narrowed(answer, kind, query)
            ids = [tuple(each.get(name) for name in (kind, "tier")) for each in answer[f"by_{kind}"]]
            table(waste.rows(answer, kind), key=f"waste_{kind}", links=links, ids=ids, formats=formats())


def requests(answer: Row) -> None:
    """The requests that computed most again."""
    st.subheader("Requests that computed most again", anchor=False)
    table(
        waste.request_rows(answer),
        key="waste_requests",
        links=[("request", request_query(each)) for each in answer["requests"]],
        ids=[(each["engine"], each["request"], each["prefix"]) for each in answer["requests"]],
        note="Click a row to open the request, with the cause of each part of its prompt.",
        formats=formats() | {"Admitted": clock()},
        most_rows=20,
    )


def formats() -> dict[str, Column]:
    """The columns of numbers."""
    return {
        "Tokens": number_column("wasted tokens"),
        "Share": number_column("share of the waste", format="%.1f %%"),
        "Prefill": number_column("wasted prefill", format="%.2f s"),
        "Admissions": number_column("admission"),
        "Lost from token": number_column("lost from token"),
    }


def clock() -> Column:
    """The column of a moment."""
    return Moments()


picker.heading("Waste")
page(filters())
