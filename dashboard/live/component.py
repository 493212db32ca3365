"""The component as Streamlit takes it: one JavaScript module, one style sheet, one piece of HTML.

Our modules import each other, and are joined here: Streamlit serves a component's files from a directory only if its package
is installed in one particular way, and this one must also run from a checkout.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

FOLDER = Path(__file__).parent
MODULES = (
    "time", "address", "theme", "rows", "model", "paint", "cursor", "card", "heads", "sentences", "minimap", "controls",
    "toolbar", "input", "live",
)  # fmt: skip
"""Each comes after those that it imports."""
NAME = "kvtrail_live"


def joined() -> str:
    """All modules as one, without imports, and without exports but the last module's default."""
    return "\n".join(_module(name) for name in MODULES)


@cache
def component() -> ComponentRenderer:
    """The component, registered once."""
    style, body = ((FOLDER / f"live.{kind}").read_text() for kind in ("css", "html"))
    return st.components.v2.component(NAME, js=joined(), css=style, html=body)


def _module(name: str) -> str:
    text = (FOLDER / f"{name}.js").read_text()
    text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", text, flags=re.MULTILINE)
