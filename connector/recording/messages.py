"""What an exception says, as it is recorded."""

from __future__ import annotations

import re
from traceback import walk_tb

from kvtrail.tracer.events.messages import kept

_OURS = "kvtrail."
_PLACE = re.compile(r" \(at [^\s:]+:\d+ in [^\s)]+\)$")


def message(error: BaseException) -> str:
    """The class and the text of an exception, without sequences of numbers."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return kept(f"{type(error).__name__}: {text}")


def located(error: BaseException) -> str:
    """The same, with where it was raised, kvtrail's own modules apart: `(at module:line in function)`. A module's name says
    which file it is without the machine's folders."""
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_OURS):
            return f"{message(error)} (at {module}:{line} in {frame.f_code.co_name})"
    return message(error)


def without_place(text: str) -> str:
    """What `located` gives, without where it was raised."""
    return _PLACE.sub("", text)
