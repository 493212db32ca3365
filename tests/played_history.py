"""A history with a stale lookup, ready to be stepped through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.player import Player

SPAN = Span("", "", "", "", 0, 0, {}, {})
STORY = """
L 749 c0 h256 -> 256
b: L 300 c0 h0 -> 0
A 256 [1-24]
S 256+80
b: A 0 [30-40]
plan store 256+80 keys c #4
b: S 0+300 [30-40]
P free 2
evict a
L 749 c336 h256 -> 256 cached
L 749 c336 h256 -> 256 cached
c: L 512 c0 h256 -> 256 async
A 256 [1-24]
c: A 256 [50-66]
b: end
"""
STALE_AT, REPEATED_AT = 12, 13
LATE = "wait 700 silent\nd: L 64 c0 h0 -> 0"


def played(events: Iterable[Event], **selection: Any) -> Player:
    return Player(History(moments=tuple((event, SPAN) for event in events)), **selection)
