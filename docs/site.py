"""A hook of MkDocs: links of a page to files outside of docs/, which are no part of the site, become their text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as it is on the site. A link to a file that does not exist stays, so that MkDocs rejects it."""
    folder = (DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        path = (folder / target).resolve()
        outside = not path.is_relative_to(DOCS) or path.suffix in (".py",)
        return text if path.exists() and outside else link.group()

    return _LINK.sub(shown, markdown)
