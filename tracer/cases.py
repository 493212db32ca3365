"""Requests under judgement: their accounts, and what is still to come of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.account import Account
from tracer.events import Event


@dataclass(slots=True)
class Stream:
    """Numbered events: the next number to enter, and those that came before their turn."""

    expected: int = 0
    recent: dict[int, str] = field(default_factory=dict)
    early: dict[int, Event] = field(default_factory=dict)


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
