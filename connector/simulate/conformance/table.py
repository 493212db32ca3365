"""The requirements as the table in docs/conformance.md.

`python -m kvtrail.connector.simulate.conformance.table` prints it; a test fails where the page has another one.
"""

from __future__ import annotations

from kvtrail.connector.simulate.conformance.requirements import REQUIREMENTS


def as_markdown() -> str:
    """A table for core, and one for each feature."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for each in REQUIREMENTS:
        title = each.level if each.feature is None else f"{each.level}: {each.feature}"
        groups.setdefault(title, []).append((f"`{each.id}`", each.sentence, each.source))
    head = ("id", "requirement", "source"), ("---",) * 3
    return "\n\n".join(
        f"### {title[0].upper()}{title[1:]}\n\n"
        + "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (*head, *rows))
        for title, rows in groups.items()
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(as_markdown())
