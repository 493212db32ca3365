"""What pages about windows of time share: the choice of the window and of filters, all of it in the page's address."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from kvtrail.dashboard import wording
from kvtrail.dashboard.window import RANGES, USUAL, Window, window

ANY = "any"


def choose_range() -> str:
    """The range back from now; it does nothing while the address pins a window."""
    key = _follow("range", [*RANGES], usual=USUAL)
    st.segmented_control(
        "Window", [*RANGES], key=key, required=True, on_change=_write, args=("range", key, USUAL),
        disabled=_pinned(time.time_ns()).pinned,
    )  # fmt: skip
    return str(st.session_state[key])


def shown_window(chosen: str) -> Window:
    """The window as of now."""
    now_ns = time.time_ns()
    pinned = _pinned(now_ns)
    if pinned.pinned:
        return pinned
    return window(chosen=chosen, since="", until="", now_ns=now_ns)


def pinning(shown: Window) -> None:
    """A line that names the window, with the button that pins it, or lets it follow the clock again."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(wording.plain(shown.text(now_ns=time.time_ns())), width="content")
        if shown.pinned:
            pressed = st.button("Follow the clock again", key="unpin", icon=":material/schedule:", type="tertiary")
            if pressed:
                for name in shown.address:
                    st.query_params.pop(name, None)
                st.rerun()
        else:
            help_ = "The same window under an address of its own, to be shared: it does not move on."
            pressed = st.button("Pin this window", key="pin", icon=":material/keep:", type="tertiary", help=help_)
            if pressed:
                st.query_params.update(shown.address)
                st.rerun()


def choose(label: str, choices: Sequence[str], *, name: str, cut: int | None = None) -> str:
    """One filter; an empty text means any. What the address names is a choice, even if nothing in the window has it."""
    options = list(dict.fromkeys([ANY, *choices, st.query_params.get(name, ANY)]))
    key = _follow(name, options, usual=ANY)
    st.selectbox(label, options, key=key, on_change=_write, args=(name, key, ANY), format_func=lambda text: text[:cut])
    chosen = st.session_state[key]
    return "" if chosen in (None, ANY) else str(chosen)


def _follow(name: str, options: Sequence[str], *, usual: str) -> str:
    """Set a widget to what the address says; its key.

    Streamlit's own `bind` would forbid links from this page to another one whose address has the same name in it.
    """
    key, named = f"filter_{name}", st.query_params.get(name, usual)
    st.session_state[key] = named if named in options else usual
    return key


def _write(name: str, key: str, usual: str) -> None:
    """Write what was chosen into the address; what is usual is left out."""
    chosen = st.session_state[key]
    if chosen in (None, usual):
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = chosen


def _pinned(now_ns: int) -> Window:
    since, until = st.query_params.get("since", ""), st.query_params.get("until", "")
    return window(chosen=USUAL, since=since, until=until, now_ns=now_ns)
