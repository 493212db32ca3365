"""Requests under judgement: their accounts, and what is still to come of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.model.events import Event

REMEMBERED_NUMBERS = 64
"""Numbers per request and recorder of which the span is remembered, to tell a repetition from a contradiction."""


@dataclass(slots=True)
class Stream:
    """Numbered events: the next number to enter, and those that came before their turn."""

    expected: int = 0
    recent: deque[str | None] = field(default_factory=lambda: deque(maxlen=REMEMBERED_NUMBERS))
    """The spans of the last numbers before it; None of one that never came."""
    early: dict[int, Event] = field(default_factory=dict)

    def known(self, number: int) -> str | None:
        """The span that came with a number before the expected one; None where that is not remembered."""
        back = self.expected - number
        return self.recent[-back] if back <= len(self.recent) else None

    def skip(self, number: int) -> None:
        """What comes before this number never comes."""
        self.recent.extend([None] * min(number - self.expected, REMEMBERED_NUMBERS))
        self.expected = number


@dataclass(slots=True)
class Case:
    """A request under judgement: its account, the streams that tell of it by recorder, and whether a fact was checked."""

    account: Account
    streams: dict[str, Stream] = field(default_factory=dict)
    checked: bool = False


def waits(account: Account) -> bool:
    """Whether something must still come of the request, in time."""
    books = account.books
    waits = books.loading or books.end or (books.received and account.ended_ns is None)
    return bool(waits) and account.status != "abandoned"


def is_due(stream: Stream, before_ns: int | None) -> bool:
    """Whether something waits in the stream, and has done so for too long."""
    early = stream.early
    return bool(early) and (before_ns is None or min(e.end_ns for e in early.values()) < before_ns)
