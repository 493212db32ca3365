"""Why a recorder drops events, as its heartbeats, the metrics and the pages name it."""

from __future__ import annotations

from enum import StrEnum


class Lost(StrEnum):
    """A reason."""

    QUEUE_EVENTS = "queue_events"
    """The ring held as many events as it may, and the oldest had to go."""
    QUEUE_BYTES = "queue_bytes"
    """The ring held as many bytes of lists and texts as it may."""
    UNSENT = "unsent"
    """The last attempt to send them failed: the engine ended, or the ring was full."""
    UNREADABLE = "unreadable"
    """They could not be encoded."""
    TOO_LARGE = "too_large"
    """The receiver said that a span is too large, even alone."""
    REFUSED = "refused"
    """The receiver would not take a span, even alone, for another reason."""
