"""The runbooks of alerts and rules, as the dashboard shows them.

They are files in docs/; `runbooks` and `runbooks.md` in this package link to them, and a wheel has copies.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvtrail.tracer.model.nearest import nearest

INDEX = Path(__file__).parents[1] / "runbooks.md"
FOLDER = INDEX.with_name("runbooks")
ALERT = "Kvtrail"
"""The prefix of alerts' names; all other names are rules."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@cache
def names() -> tuple[str, ...]:
    """The alerts and rules that have a runbook."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


def text(name: str) -> str | None:
    """A runbook as Markdown with links to pages of the dashboard; the index if `name` is empty, None if unknown."""
    if name and name not in names():
        return None
    markdown = (FOLDER / f"{name}.md" if name else INDEX).read_text()
    # Headings go down a level, to the size of other pages' headings.
    return re.sub(r"^(#+ )", r"#\1", _LINK.sub(_page_link, markdown), flags=re.MULTILINE)


def similar(name: str) -> list[str]:
    """Names that look like `name`, the closest first."""
    return nearest(name, names())


def _page_link(link: re.Match[str]) -> str:
    """A link between files as a link between pages; relative, since the dashboard may be served under any path."""
    words, target = link.groups()
    file, _, anchor = target.partition("#")
    path = Path(file)
    if "://" in target:
        return link[0]
    if path.name == INDEX.name:
        return f"[{words}](findings?runbook=all#{anchor})"
    if path.name == "rules.md":
        return f"[{words}](findings?rule={anchor})"
    if path.stem in names():
        return f"[{words}](findings?runbook={path.stem})"
    return words  # other documentation, which the dashboard does not serve
