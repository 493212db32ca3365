"""The glossary: the help texts of the pages."""

from __future__ import annotations

from kvtrail.dashboard.glossary import TERMS


def test_a_term_is_explained_in_a_sentence() -> None:
    for name, text in TERMS.items():
        assert text.endswith("."), name
        assert len(text) < 160, f"{name} is too long for a tooltip"
        assert "|" not in text
