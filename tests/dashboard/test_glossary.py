"""The glossary: the pages' help texts and the documentation say the same."""

from __future__ import annotations

from pathlib import Path

from kvtrail.dashboard.glossary import TERMS, as_markdown

CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts.md"


def test_the_documentation_has_the_same_terms() -> None:
    assert as_markdown() in CONCEPTS.read_text(), "run `python -m kvtrail.dashboard.glossary`"


def test_a_term_is_explained_in_a_sentence() -> None:
    for name, text in TERMS.items():
        assert text.endswith("."), name
        assert len(text) < 160, f"{name} is too long for a tooltip"
        assert "|" not in text
