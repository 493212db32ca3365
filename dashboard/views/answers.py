"""The tracer's answers, and a banner while the tracer is away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from kvtrail.dashboard.client import Tracer, TracerAway
from kvtrail.dashboard.command import CA_VARIABLE, DEFAULT_URL, TOKEN_VARIABLE, TRACER_VARIABLE
from kvtrail.dashboard.views.links import follow_click

EVERY_S, SLOW_S = 2, 5
"""Refresh interval of a page; `SLOW_S` is for pages about long time ranges."""
OVER_NS = 15 * 60 * 10**9
"""A range that ended this long ago is not refreshed: no span arrives later, and no rule waits longer."""
ASKED, LAST = "asked", "last_answer"
"""The session's keys for the page's last question, and for the last answer with its question."""

Answer = TypeVar("Answer")


@st.cache_resource
def tracer() -> Tracer:
    """The client, shared by all sessions."""
    token_file, ca = (
        Path(os.environ[name]) if os.environ.get(name) else None for name in (TOKEN_VARIABLE, CA_VARIABLE)
    )
    return Tracer(os.environ.get(TRACER_VARIABLE, DEFAULT_URL), token_file=token_file, ca=ca)


def unless_over(every_s: float, *, ended_ns: int | None) -> float | None:
    """The interval of a page's refreshes; None, without refreshes, if its range ended long ago."""
    return every_s if ended_ns is None or time.time_ns() - ended_ns < OVER_NS else None


def read(ask: Callable[[], Answer], *, key: str) -> Answer:
    """The tracer's answer. If it does not answer: a banner, and the last answer to the same question `key`. Without such an
    answer the page ends here.

    So the page stays usable while the tracer restarts.
    """
    # Always an element, so that the following ones keep their position and are not redrawn.
    banner = st.empty()
    st.session_state[ASKED] = key
    last: tuple[str, Answer] | None = st.session_state.get(LAST)
    if last is not None and last[0] != key:
        last = None
    with banner:
        is_leaving = follow_click()
    if is_leaving and last is not None:
        return last[1]  # a hanging tracer would block the user here
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
        if last is None:
            st.stop()
        return last[1]
    # One slot for all questions: typing a search makes many, and their answers would pile up.
    st.session_state[LAST] = (key, answer)
    return answer


def unless_away(ask: Callable[[], Any], otherwise: Any = None) -> Any:
    """The tracer's answer, or `otherwise` while it is away: the part of the page that `read` draws shows the error."""
    try:
        return ask()
    except TracerAway:
        return otherwise


def question() -> str:
    """The question that the page's contents answer. The URL may already have the next one: a browser changes it, and may
    refresh a fragment before the whole page runs."""
    return str(st.session_state[ASKED])


def remembered(key: str, asked: object, ask: Callable[[], Answer]) -> Answer | None:
    """An answer that is kept until `asked` changes, or while the tracer is away."""
    known: tuple[object, Answer] | None = st.session_state.get(key)
    if known is not None and known[0] == asked:
        return known[1]
    try:
        answer = ask()
    except TracerAway:
        return None if known is None else known[1]
    st.session_state[key] = (asked, answer)
    return answer
