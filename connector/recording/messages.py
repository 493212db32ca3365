"""What an exception says, as it is recorded."""

from __future__ import annotations

from kvtrail.tracer.model.messages import kept


def message(error: BaseException) -> str:
    """The class and the text of an exception, without sequences of numbers."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return kept(f"{type(error).__name__}: {text}")
