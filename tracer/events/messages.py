"""Shortens an exception's text for the record. It leaves out long rows of numbers, which may be a user's text in tokens."""

from __future__ import annotations

import re

MOST = 2000
"""Maximum length of a recorded message in characters."""
_READ = 20_000
"""Characters of a message that are read."""
_NUMBER = r"(?:[A-Za-z_][\w.]{0,40}\()?[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?\)?"
_BETWEEN = r"(?:[\s,;|\[\](){}'\"]|\\+[nrt]|:(?=\s))+"
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:{_BETWEEN}{_NUMBER}){{2,}}(?![\w])")
_ALIKE = re.compile(r"(?<!\d)\d+(\D{1,40}?)\d+(?:\1\d+){4,}")
"""Six or more, with the same text between any two: `Token(id=5), Token(id=6), ...`."""


def kept(text: str) -> str:
    """The recorded form of a message: its length is limited, and rows of three or more numbers become a count."""
    said = _ALIKE.sub(_counted, _RUN.sub(_counted, text[:_READ]))
    return said if len(said) <= MOST else f"{said[: MOST - 1]}…"


def _counted(run: re.Match[str]) -> str:
    return f"<{len(re.findall(_NUMBER, run[0]))} numbers>"
