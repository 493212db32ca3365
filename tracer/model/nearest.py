"""Suggestions for a misspelled name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 3
"""Maximum number of suggested names."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that contain this one or look like it, whatever their case; at most `MOST`, the best first."""
    by_lower = {each.lower(): each for each in known}
    asked = name.lower()
    found = [*(each for each in by_lower if asked and asked in each), *get_close_matches(asked, by_lower)]
    return [by_lower[each] for each in dict.fromkeys(found)][:MOST]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question at the end of a message about a name; empty if nothing is near it."""
    found = [repr(each) for each in nearest(name, known)]
    return f". Did you mean {' or '.join(found)}?" if found else ""
