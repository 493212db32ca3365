"""The keys of the replay: a component that shows nothing, and tells which step was gone to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

KEY = "replay_keys"
HINTS = {"before": "P", "after": "N", "finding_before": "Shift + F", "finding_after": "F"}
"""The keys, as the buttons name them."""


@cache
def component() -> ComponentRenderer:
    """The component, registered once."""
    return st.components.v2.component("kvtrail_replay_keys", js=Path(__file__).with_suffix(".js").read_text())


def listen(*, step: int, steps: int, found: Sequence[int], go: Callable[[int], None]) -> None:
    """Listen while this step of so many is shown, with findings at the steps `found`; `go` is called with where to go."""

    def pressed() -> None:
        go(int(_told()["step"]))

    data = {"step": step, "steps": steps, "found": sorted(found), "presses": _told().get("presses", 0)}
    component()(key=KEY, data=data, on_pressed_change=pressed)


def _told() -> dict[str, Any]:
    told: dict[str, Any] | None = st.session_state.get(KEY, {}).get("pressed")
    return told or {}
