"""The runbooks as the dashboard shows them: one of each alert and of each rule. Pure.

They are the files of docs/, to which the links beside this file lead; a wheel holds copies.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

INDEX = Path(__file__).with_name("runbooks.md")
FOLDER = Path(__file__).with_name("runbooks")
ALERT = "Kvtrail"
"""How the names of alerts begin; the others are rules."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@cache
def names() -> tuple[str, ...]:
    """The alerts and the rules that have a runbook; every finding on a page asks for them."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


def text(name: str) -> str | None:
    """A runbook as Markdown with the dashboard's addresses; without a name the list of all, None for an unknown name."""
    if not name:
        return _addressed(INDEX.read_text())
    return _addressed((FOLDER / f"{name}.md").read_text()) if name in names() else None


def meant(name: str) -> list[str]:
    """Names that look like this one, the likeliest first."""
    by_lower = {each.lower(): each for each in names()}
    return [by_lower[each] for each in get_close_matches(name.lower(), by_lower, n=3)]


def _addressed(markdown: str) -> str:
    """Links between files become links between pages. They are relative: the dashboard may live under any path.

    Headings go down by a level, to the size of the other pages' headings.
    """

    def page(match: re.Match[str]) -> str:
        words, target = match.groups()
        file, _, anchor = target.partition("#")
        name = Path(file).name
        if "://" in target:
            return match[0]
        if name == INDEX.name:
            return f"[{words}](runbook#{anchor})"
        if name == "rules.md":
            return f"[{words}](findings?rule={anchor})"
        if Path(name).stem in names():
            return f"[{words}](runbook?name={Path(name).stem})"
        return words  # another part of the documentation, which is not served here

    return re.sub(r"^(#+ )", r"#\1", _LINK.sub(page, markdown), flags=re.MULTILINE)
