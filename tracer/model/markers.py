"""Markers: what happened at a moment and may explain that something changed then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MarkerKind(StrEnum):
    """What a marker marks. The values are stored, and part of the api."""

    DEPLOY = "deploy"
    """An engine was launched that is new, or that differs in a version or a setting from the one before it."""
    RESTART = "restart"
    """An engine was launched in the place of an equal one that had ended."""
    DEATH = "death"
    CONTACT_LOST = "contact lost"
    END = "end"
    """An engine ended well, or was replaced."""
    RESET = "reset"
    """A cache was asked to forget what it holds: vLLM's own, or the connector's."""
    DROP = "drop"
    """A recorder has dropped events."""


MOST_TEXT = 400
"""Characters of a marker's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A moment at which something happened.

    Attributes:
        id: what is the same if it is recorded again.
        kind: what happened.
        at_ns: when, Unix nanoseconds.
        engine: vLLM's engine id; empty for what concerns no single engine.
        text: a sentence about it, without the engine's name.
        count: how many of this kind it stands for, where several that are close to each other were joined.
    """

    id: str
    kind: MarkerKind
    at_ns: int
    engine: str = ""
    text: str = ""
    count: int = 1
