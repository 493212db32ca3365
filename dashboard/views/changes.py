"""What changed at a moment: the range before it against the range after it, and the requests of which group explain it."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import changes, text
from kvtrail.dashboard.content.time_range import EXAMPLES, TimeRange, parsed
from kvtrail.dashboard.views import address, picker, tables
from kvtrail.dashboard.views.answers import SLOW_S, read, tracer
from kvtrail.dashboard.views.tables import number_column
from kvtrail.dashboard.views.widgets import set_to, when_chosen

AT = "at"
"""The moment's name in the address, and the session's key for its field."""


def moment(shown: TimeRange) -> int:
    """The moment that the address names, or the middle of the range."""
    at_ns = parsed(address.query().get(AT, ""), now_ns=time.time_ns())
    is_inside = at_ns is not None and shown.since_ns < at_ns < shown.until_ns
    return at_ns if is_inside and at_ns is not None else (shown.since_ns + shown.until_ns) // 2


def field(at_ns: int) -> None:
    """Where a person types the moment."""
    set_to(AT, text.clock(at_ns, now_ns=time.time_ns()).partition(".")[0])

    def write() -> None:
        address.change({AT: st.session_state[AT]})

    st.text_input(
        "At (UTC)",
        key=AT,
        on_change=when_chosen(AT, write),
        help=f"A moment inside the range: what was before it is compared with what came after. Type {EXAMPLES}.",
        width=260,
    )


@st.fragment(run_every=SLOW_S)
def page(at_ns: int) -> None:
    """Draw the page, again at each refresh."""
    shown = picker.current()

    def ask() -> Row:
        return tracer().changes(at_ns=at_ns, **shown.query)

    answer = read(ask, key=f"changes {shown.field()} {at_ns}", again_s=picker.again_s(SLOW_S))
    if answer is None:
        return
    names, found = answer["engine_names"] | answer.get("tenant_names", {}), answer["changes"]
    at = text.clock(answer["at_ns"], now_ns=time.time_ns()).partition(".")[0]
    st.caption(
        f"Before {at} UTC against after it, by the minute. A share is what a group adds to the change of the whole; those of"
        " one kind of group add up to 100 %."
    )
    said = changes.sentences(found, names)
    if not said:
        st.info("Nothing changed by more than 5 %.")
    for each in said:
        st.markdown(each)
    for change in found:
        if change["measure"] != changes.FIRST:
            continue
        st.subheader("Who computes more, or less", anchor=False)
        formats = {
            "Before": number_column("before", format="%.1f"),
            "After": number_column("after", format="%.1f"),
            "Share of the change": number_column("share of the change", format="%.1f %%"),
        }
        after = TimeRange(answer["at_ns"], answer["until_ns"])
        tables.table(
            changes.rows(change, names),
            key="changed",
            links=changes.links(change, after),
            ids=[(each["dimension"], each["group"]) for each in change["groups"]],
            note="Prompt tokens computed a minute. Click a row to see the requests.",
            formats=formats,
        )


picker.heading("What changed")
chosen_ns = moment(picker.current())
field(chosen_ns)
page(chosen_ns)
