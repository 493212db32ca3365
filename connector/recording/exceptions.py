"""What an exception says, as it is recorded, and which exception an engine has died of."""

from __future__ import annotations

import re
import sys
from traceback import walk_tb

from kvtrail.tracer.events.messages import kept

MOST_OF_A_DEATH = 200
"""Characters of an exception that an end record has."""
_OURS = "kvtrail."
_ENGINE = ("vllm.v1.engine.core", "vllm.v1.core.")
"""The modules that an engine's own steps run through."""
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


def cause_of_death(error: BaseException | None = None) -> str | None:
    """The class and the text of the exception that an engine dies of: this one, or else the one that ends the process, if it
    went through an engine's steps. An engine in the process of its caller is shut down after everything else. None where
    there is none: a signal to end, Ctrl-C and `sys.exit` come as exceptions, too, and are no death."""
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error and error.__traceback__)]
        if not any(module.startswith(_ENGINE) for module in modules):
            return None
    return message(error) if isinstance(error, Exception) else None
