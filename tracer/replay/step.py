"""One event of a history, and what it does to its request's account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.model.events import Event, RequestEnd, RequestStart
from kvtrail.tracer.model.findings import Finding

NUMBERS = (
    "status", "epoch", "total", "prompt", "computed", "matched", "returned", "allocated", "scheduled", "begun", "rejected",
    "loaded", "stored", "loaded_by_rank", "stored_by_rank", "stored_ranges", "longest_match", "lookups", "refused",
    "outcome", "error", "complete",
)  # fmt: skip
"""What of an account can change from step to step and says something; the rest is who the request is, and when."""
_UNKNOWN = Account("", "").as_dict()


def at_ns(event: Event) -> int:
    """When an event is said to happen: when its call began. The request's own span is as long as the request, and is its
    end."""
    return event.end_ns if isinstance(event, RequestEnd) else event.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of a history.

    Attributes:
        number: its place in the whole history, from 1.
        event: what happened.
        gap: events of the same request and recorder that are missing just before it.
        before: the request's account before the event, as JSON-ready data; None for an event of no request, and for a
            request's first.
        after: the same after the event; None for an event of no request.
        findings: what was found by this event, as it stood then.
        again: earlier findings that the event shows once more, as they stood when they were made.
        late: what no event brought, because something has not come by the end; only at the last step that is shown.
    """

    number: int
    event: Event
    gap: int = 0
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    again: tuple[Finding, ...] = ()
    late: tuple[Finding, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What of the account is another after the event than before: its value before, and after."""
        if self.after is None:
            return {}
        before = self.before or _UNKNOWN
        return {name: (before[name], self.after[name]) for name in NUMBERS if before[name] != self.after[name]}


@dataclass(slots=True)
class Telling:
    """An account while the events of its request are entered one after the other."""

    account: Account
    expected: dict[str, int] = field(default_factory=dict)
    entered: int = 0

    def enter(self, event: Event) -> int:
        """Enter the next event, as the detector does; returns how many are missing before it."""
        self.entered += 1
        gap = event.request_sequence - self.expected.get(event.recorder, 0)
        if gap:
            self.account.complete = False
        if gap < 0:  # a number that was there already, on another span: it counts once
            return 0
        self.expected[event.recorder] = event.request_sequence + 1
        if self.account.ended_ns is not None and isinstance(event, RequestStart):
            self.account = Account(self.account.engine, self.account.request)
        self.account.apply(event)
        return gap
