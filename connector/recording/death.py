"""What an engine died of: the exception that its end record names."""

from __future__ import annotations

import sys
from traceback import walk_tb

from kvtrail.connector.recording.messages import message

MOST = 200
"""Characters of it that an end record has."""
_ENGINE = ("vllm.v1.engine.core", "vllm.v1.core.")
"""The modules that an engine's own steps run through."""


def cause_of(error: BaseException | None) -> str | None:
    """The class and the text of an exception that ends an engine; None where there is none: a signal to end, Ctrl-C and
    `sys.exit` come as exceptions, too, and are no death."""
    return message(error) if isinstance(error, Exception) else None


def of_process() -> BaseException | None:
    """The exception that ends this process, while it ends, if it went through an engine's steps: an engine in the process of
    its caller is shut down after everything else."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return None
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    return error if any(module.startswith(_ENGINE) for module in modules) else None
