"""JavaScript for Streamlit's components.

Streamlit serves a component's files from a folder only if its package is installed in a certain way, and kvtrail must also
run from a checkout: so a component's modules are joined into one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

FOLDER = Path(__file__).with_name("browser")


@cache
def invisible(name: str) -> ComponentRenderer:
    """A component that draws nothing: the browser runs `browser/<name>.js` wherever it is placed. Registered once."""
    js = (FOLDER / f"{name}.js").read_text()
    return st.components.v2.component(f"kvtrail_{name}", js=js, isolate_styles=False)


def joined(modules: Iterable[Path]) -> str:
    """The modules joined into one, each after its imports; without import statements and with only the default export."""
    return "\n".join(_module(path.read_text()) for path in modules)


def _module(text: str) -> str:
    text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", text, flags=re.MULTILINE)
