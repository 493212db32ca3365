"""What is kept of an exception's text: not the numbers of a request, which may be its user's text in tokens."""

from __future__ import annotations

import re

MOST = 2000
"""Characters of a message that are kept."""
_READ = 20_000
"""Characters of a message that are read."""
_NUMBER = r"(?:[A-Za-z_][\w.]{0,40}\()?[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?\)?"
_BETWEEN = r"(?:[\s,;|\[\](){}'\"]|\\+[nrt]|:(?=\s))+"
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:{_BETWEEN}{_NUMBER}){{2,}}(?![\w])")
_ALIKE = re.compile(r"(?<!\d)\d+(\D{1,40}?)\d+(?:\1\d+){4,}")
"""Six or more, with the same text between any two: `Token(id=5), Token(id=6), ...`."""


def kept(text: str) -> str:
    """A message as it is recorded: three or more numbers in a row become their count, and it has an end."""
    said = _ALIKE.sub(_counted, _RUN.sub(_counted, text[:_READ]))
    return said if len(said) <= MOST else f"{said[: MOST - 1]}…"


def _counted(run: re.Match[str]) -> str:
    return f"<{len(re.findall(_NUMBER, run[0]))} numbers>"
