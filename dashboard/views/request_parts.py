"""Parts of the page about one request: badges, findings on cards, block tables, unknown request."""

from __future__ import annotations

import time

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import findings as content
from kvtrail.dashboard.content.request import phases, replay
from kvtrail.dashboard.content.requests import status
from kvtrail.dashboard.content.text import plain, prose
from kvtrail.dashboard.views.answers import tracer
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.tracer.model import words

MOST = 3
"""Maximum number of findings outside of the expander."""


def badge(name: str, *, label: str | None = None) -> None:
    """A status, verdict or severity in its colour."""
    st.badge(label or plain(palette.label(name)), color=palette.BADGES.get(name, "gray"))  # type: ignore[arg-type]


def request_badges(request: Row) -> None:
    """A request's status and verdict."""
    badge(status(request))
    badge(request["verdict"], label=f"verdict: {request['verdict']}")


def finding_cards(findings: list[Row], timeline: Row, *, steps: dict[str, int] | None = None) -> None:
    """A request's findings, one below the other. With `steps` (finding id to step number) each links to the replay."""
    shown = st.container()
    rest = len(findings) - MOST
    more = st.expander(f"{words.some(rest, 'more finding')} of this request") if rest > 0 else shown
    for number, finding in enumerate(findings):
        with shown if number < MOST else more:
            _card(finding, timeline, (steps or {}).get(finding["id"]))


def _card(finding: Row, timeline: Row, step: int | None) -> None:
    """Impact, severity, why it is drift, what to do, and the events that prove it."""
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            badge(finding["did"], label=f"impact: {finding['did']}")
            badge(finding["severity"], label=f"severity: {finding['severity']}")
            st.markdown(f"**{plain(finding['title'])}**", width="content")
            if finding["known"]:
                badge("known")
        st.markdown("  \n".join(map(plain, content.sentences(finding))))
        if finding["known"]:
            st.caption(plain(content.why_known(finding["known"])))
        st.markdown(f"**What to do.** {prose(finding['hint'])}")
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if step is not None:
                label = f"Replay from step {words.count(step)}, where it shows"
                link("request", label, icon="play_arrow", query=request_query(finding, step=step))
            link("findings", "Runbook", icon="menu_book", query={"rule": finding["rule"]})
            st.caption(content.sightings(finding, now_ns=time.time_ns()), width="content")
        steps = {each["span_id"]: number for number, each in enumerate(timeline["steps"], 1)}
        with st.expander("The events that prove it"):
            rows = content.evidence(finding, steps)
            # Streamlit renders cells as Markdown.
            cells = [{name: plain(words.value(value)) for name, value in row.items()} for row in rows]
            st.table(cells, border="horizontal", hide_index=True)


def block_table(step: Row, timeline: Row, *, title: str = "Its blocks") -> None:
    """The blocks that a step names, by KV cache group; nothing for a step that names none."""
    rows = replay.block_rows(step, timeline.get("groups") or ())
    if rows:
        with st.expander(f"{title}: {replay.block_summary(step)}"):
            st.table(rows, border="horizontal", hide_index=True)


def unknown_request(which: str) -> None:
    """The message for a request in the URL that the tracer does not know."""
    st.header("Request not known", anchor=False)
    st.markdown(
        f"The tracer knows no request {which}. It may be older than the tracer's retention, or its first spans have not"
        " arrived yet; this page retries every 2 s."
    )
    link("requests", "All requests")


def phases_of(timeline: Row) -> list[phases.Stretch]:
    """The phases of a request, as in the live view."""
    request = timeline["request"]
    return phases.stretches(tracer().get("lanes", **phases.question(request, now_ns=time.time_ns())), request)
