"""The glossary: the help texts of the pages."""

from __future__ import annotations

from pathlib import Path

from kvtrail.dashboard import glossary
from kvtrail.dashboard.glossary import TERMS


def test_a_term_is_explained_in_a_sentence() -> None:
    for name, text in TERMS.items():
        assert text.endswith("."), name
        assert len(text) < 160, f"{name} is too long for a tooltip"
        assert "|" not in text


def test_every_term_helps_on_a_page() -> None:
    folder = Path(glossary.__file__).parent
    pages = "".join(path.read_text() for path in folder.rglob("*.py") if path != Path(glossary.__file__))
    assert not [name for name in TERMS if f'TERMS["{name}"]' not in pages and f'"{name}")' not in pages]
