"""The component as Streamlit wants it: one module of JavaScript, one style sheet, one piece of HTML.

The modules are written as such, with `import` and `export`, and joined here: Streamlit serves a component's files from a
directory only if the package was installed in one particular way, and ours shall work from a checkout as well.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

FOLDER = Path(__file__).parent
MODULES = (
    "range", "clock", "rows", "model", "theme", "paint", "notes", "tip", "toolbar", "empty", "pointer", "keys", "live",
)  # fmt: skip
"""In an order in which each comes after those that it needs at once."""
NAME = "kvtrail_live"


def joined() -> str:
    """All modules as one: without their imports, and with no export but the last module's default."""
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
