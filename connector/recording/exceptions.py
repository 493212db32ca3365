"""The recorded text of an exception, and the exception that ended an engine."""

from __future__ import annotations

import re
import sys
from traceback import walk_tb

from kvtrail.tracer.events.messages import kept

MOST_OF_A_DEATH = 200
"""Maximum length of an exception in an end record, in characters."""
_OURS = "kvtrail."
_ENGINE = ("vllm.v1.engine.core", "vllm.v1.core.")
"""The modules of an engine's steps."""
_PLACE = re.compile(r" \(at [^\s:]+:\d+ in [^\s)]+\)$")


def message(error: BaseException) -> str:
    """The class and the text of an exception, without sequences of numbers."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return kept(f"{type(error).__name__}: {text}")


def located(error: BaseException) -> str:
    """The result of `message`, with the innermost location outside of kvtrail's modules: `(at module:line in function)`. A
    module's name identifies the file without the machine's folders."""
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_OURS):
            return f"{message(error)} (at {module}:{line} in {frame.f_code.co_name})"
    return message(error)


def without_place(text: str) -> str:
    """The result of `located` without the location."""
    return _PLACE.sub("", text)


def cause_of_death(error: BaseException | None = None) -> str | None:
    """The class and the text of the exception that ends an engine: this one, or else the one that ends the process, if it
    passed through an engine's steps. An engine in its caller's process is shut down after everything else. None if there is
    none: a termination signal, Ctrl-C and `sys.exit` are also exceptions, but not deaths."""
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error and error.__traceback__)]
        if not any(module.startswith(_ENGINE) for module in modules):
            return None
    return message(error) if isinstance(error, Exception) else None
