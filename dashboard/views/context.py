"""The context of a page's run: its run, page and theme. Streamlit has no public names for most of it."""

from __future__ import annotations

import streamlit as st
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext, ThreadState


def this_run() -> object:
    """An object unique to the run: its callbacks, then the whole page or the refreshed fragments."""
    return _context().cursors


def page_shown() -> str:
    """The page that the browser requests, by Streamlit's unique name for it."""
    return _context().page_script_hash


def is_refresh() -> bool:
    """Whether only fragments of the page run, as at each refresh."""
    return _context().fragment_ids_this_run is not None


def is_step_of_history() -> bool:
    """Whether the browser went back or forward."""
    return _context().is_history_navigation


def refresh_every(seconds: float | None) -> None:
    """From now on, have the browser refresh this part of the page at this interval; None: no more, until the whole page runs.

    Streamlit itself knows one interval only, and goes on for as long as a tab is open.
    """
    part, message = ThreadState.get().fragment_id, ForwardMsg()
    if part is None:
        return
    if seconds is None:
        message.stop_auto_rerun.fragment_ids.append(part)
    else:
        message.auto_rerun.fragment_id, message.auto_rerun.interval = part, seconds
    _context().enqueue(message)


def is_dark() -> bool:
    """Whether the page has the dark theme. Charts need their colours when they are built."""
    return bool(st.context.theme.type == "dark")


def _context() -> ScriptRunContext:
    context = get_script_run_ctx()
    assert context is not None, "Streamlit runs the pages"
    return context
