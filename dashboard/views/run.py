"""What Streamlit knows about the run of the page's script, and has no public name for."""

from __future__ import annotations

from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext


def this_run() -> object:
    """Something that each run has for itself: its callbacks, and then the whole page or the parts that are refreshed."""
    return _context().cursors


def page_shown() -> str:
    """The page that the browser wants, as Streamlit calls it; no two have the same name."""
    return _context().page_script_hash


def is_refresh() -> bool:
    """Whether only a part of the page is run, as each refresh does."""
    return _context().fragment_ids_this_run is not None


def is_step_of_history() -> bool:
    """Whether the browser went back or forward."""
    return _context().is_history_navigation


def _context() -> ScriptRunContext:
    context = get_script_run_ctx()
    assert context is not None, "Streamlit runs the pages"
    return context
