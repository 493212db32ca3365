"""Markers: events in time that may explain a change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MarkerKind(StrEnum):
    """The kind of event that a marker marks. The values are stored, and part of the API."""

    DEPLOY = "deploy"
    """A new engine was launched, or one that differs in a version or a setting from its predecessor."""
    RESTART = "restart"
    """An engine was launched to replace an equal one that had ended."""
    DEATH = "death"
    CONTACT_LOST = "contact lost"
    END = "end"
    """An engine ended well, or was replaced."""
    RESET = "reset"
    """vLLM's own cache, or the connector's, was asked to drop all that it holds."""
    DROP = "drop"
    """A recorder has dropped events."""


MOST_TEXT = 400
"""Characters of a marker's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A moment at which something happened.

    Attributes:
        id: an identifier that stays the same if the marker is recorded again.
        kind: what happened.
        at_ns: when, Unix nanoseconds.
        engine: vLLM's engine id; empty if the marker concerns no single engine.
        text: a sentence about it, without the engine's name.
        count: the number of joined markers of this kind that were close to each other.
    """

    id: str
    kind: MarkerKind
    at_ns: int
    engine: str = ""
    text: str = ""
    count: int = 1
