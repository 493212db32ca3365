"""JavaScript modules as Streamlit takes them: it serves a component's files from a directory only if its package is installed
in one particular way, and ours must also run from a checkout. So the modules that one imports are joined to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

COPYING = Path(__file__).with_name("copying.js")
"""How a link is copied, on every page."""


def joined(modules: Iterable[Path]) -> str:
    """These modules as one, each after those that it imports: without imports, and without exports but the default."""
    return "\n".join(_module(path.read_text()) for path in modules)


def _module(text: str) -> str:
    text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", text, flags=re.MULTILINE)
