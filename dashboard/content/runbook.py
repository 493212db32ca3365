"""The runbooks of alerts and rules for the dashboard.

Runbooks of alerts are files in docs/; `runbooks` and `runbooks.md` in this package link to them, and a wheel has copies. The
runbook of a rule is part of the rule's page (`tracer/rules/pages.py`).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvtrail.tracer.rules import pages

INDEX = Path(__file__).parents[1] / "runbooks.md"
FOLDER = INDEX.with_name("runbooks")
ALERT = "Kvtrail"
"""The prefix of alerts' names; all other names are rules."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@cache
def names() -> tuple[str, ...]:
    """The alerts and rules that have a runbook."""
    return (*sorted(path.stem for path in FOLDER.glob("*.md")), *pages.files())


def text(name: str) -> str | None:
    """A runbook as Markdown with links to pages of the dashboard; the index if `name` is empty, None if unknown."""
    if name and name not in names():
        return None
    file = FOLDER / f"{name}.md" if name else INDEX
    markdown = _of_rule(name) if name in pages.files() else file.read_text()
    # Headings go down a level, to the size of other pages' headings.
    return re.sub(r"^(#+ )", r"#\1", _LINK.sub(_page_link, markdown), flags=re.MULTILINE)


def _of_rule(rule: str) -> str:
    page = pages.page(rule)
    return f"# {rule}\n\n{page.title}. Severity: {', or '.join(page.severities)}.\n\n{page.runbook}\n"


def _page_link(link: re.Match[str]) -> str:
    """A link between files as a link between pages; relative, since the dashboard may be served under any path."""
    words, target = link.groups()
    file, _, anchor = target.partition("#")
    path = Path(file)
    name = path.stem.replace("_", "-")
    if "://" in target:
        return link[0]
    if path.name == "rules.md":
        return f"[{words}](findings?runbook={anchor})"
    if path.name == INDEX.name:
        return f"[{words}](findings?runbook=all#{anchor})"
    if name in names():
        return f"[{words}](findings?runbook={name})"
    return words  # other documentation, which the dashboard does not serve
