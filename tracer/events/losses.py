"""Why a recorder drops events, as its heartbeats, the metrics and the pages name it."""

from __future__ import annotations

from enum import StrEnum


class Lost(StrEnum):
    """A reason."""

    QUEUE_EVENTS = "queue_events"
    """The ring held its maximum number of events and dropped the oldest."""
    QUEUE_BYTES = "queue_bytes"
    """The ring held its maximum number of bytes of lists and texts."""
    UNSENT = "unsent"
    """The last attempt to send them failed: the engine ended, or the ring was full."""
    UNREADABLE = "unreadable"
    """They could not be encoded."""
    TOO_LARGE = "too_large"
    """The receiver rejected a span as too large even when it was sent alone."""
    REFUSED = "refused"
    """The receiver rejected a span, even when it was sent alone, for another reason."""
