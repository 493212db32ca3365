"""A step of `make lint`: pages, names and docstrings use no word for which plain English has a better one."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for package in ("connector", "tracer", "dashboard") for path in (ROOT / package).rglob("*.py")]
DIALECT = re.compile(
    r"\b(?:anew|reckon(?:s|ed|ing)?|untold|unheard|whereof|thereof|without rest|signs? of life|f[ae]lls? silent)\b"
)
"""Words for which plain English has better ones: again, estimate, not recorded, exactly, heartbeat, stopped reporting."""
DIALECT_NAMES = {"anew", "reckon", "reckoned", "told", "unheard", "untold", "became", "whose"}
"""The same for the parts of names in code: `told_apart`."""
PLAIN_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "deploy").rglob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def words_of(name: str) -> set[str]:
    """The parts of an identifier: `ToldApart` and `told_apart` give `told` and `apart`."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def docstrings_in(tree: ast.Module) -> Iterator[str]:
    """Docstrings, and the bare strings that document constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def prose_of(page: str) -> str:
    """Markdown without code, which may hold names of the API."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))


def check_itself() -> None:
    """The words that must be recognized are, and no others."""
    for text in (
        "It is told anew.",
        "They reckon it.",
        "The parts make up the prompt, without rest.",
        "no signs of life",
    ):
        assert DIALECT.search(prose_of(text)), text
    assert not DIALECT.search(prose_of("`kvtrail_recorder_untold` counts them; the outcome is `unheard`."))
    assert words_of("_told_apart") & DIALECT_NAMES
    assert words_of("WhatBecame") & DIALECT_NAMES
    assert not words_of("untoldable_states") & DIALECT_NAMES


def mistakes() -> Iterator[str]:
    """Each place with such a word."""
    for path in PLAIN_PAGES:
        for word in DIALECT.findall(prose_of(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}: {word}"
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name in names_in(tree):
            if words_of(name) & DIALECT_NAMES:
                yield f"{path.relative_to(ROOT)}: the name {name}"
        for text in docstrings_in(tree):
            for word in DIALECT.findall(prose_of(text)):
                yield f"{path.relative_to(ROOT)}: {word!r} in {text.splitlines()[0]!r}"


if __name__ == "__main__":
    check_itself()
    found = [*mistakes()]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
