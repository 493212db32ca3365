"""The tracer's answers, and what a page shows while there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import streamlit as st

from kvtrail.dashboard.client import DEFAULT_URL, Tracer, TracerAway
from kvtrail.dashboard.command import CA_VARIABLE, TOKEN_VARIABLE, TRACER_VARIABLE

EVERY_S = 2
"""How often a page asks the tracer again; `SLOW_S` for pages about long time ranges."""
SLOW_S = 5

ASKED, LAST = "asked", "last_answer"
"""The session's names for the question that the page has asked last, and for the last answer with its question."""

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
    st.session_state[ASKED] = key
    asked, known = st.session_state.get(LAST, (None, None))
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
    st.session_state[LAST] = (key, answer)
    return answer


def question() -> str:
    """What the page shows answers to this. The address may name the next question already: a browser changes it, and may have
    a part of the page refreshed before it has the whole page run."""
    return str(st.session_state[ASKED])
