"""The token account of every request, rebuilt from events alone.

The ledger is an auditor: it derives from the calls what scheduler and connector must each believe, and takes nobody's
word for it. It is pure, holds no clock and does no I/O. It expects the events of a request in their order; `detect`
sees to that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from tracer.events import (
    Alloc,
    Event,
    Heartbeat,
    Load,
    Lookup,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Store,
)

SCHEDULER = "scheduler"
REMEMBERED_LOOKUPS = 16
"""Distinct lookups kept per request as witnesses; repeated ones with the same numbers count as one."""


@dataclass(slots=True)
class Account:
    """What is known of one request at one moment. Counts are tokens unless they say otherwise; None is 'not yet'."""

    engine: str
    request: str
    external: str = ""
    trace_id: str = ""
    connector: str = ""
    status: str = "queued"
    """queued | admitted | loading | running | preempted | finished | failed | abandoned: `failed` when a call about it
    raised, `abandoned` when its engine's recorder said goodbye before the request had ended."""
    recorder: str = ""
    """The recorder on the scheduler's side."""
    epoch: int = 0
    """How often the request has been preempted."""
    total: int | None = None
    computed: int | None = None
    """Computed in vLLM, as the last call about it said."""
    matched: int | None = None
    returned: int | None = None
    allocated: int | None = None
    scheduled: int | None = None
    loaded: int = 0
    """Copied from the connector's store, over all epochs and ranks of one recorder."""
    stored: int = 0
    """Copied into the connector's store."""
    longest_match: int = 0
    """The longest prefix that any of its lookups matched."""
    lookups: int = 0
    """Lookup calls, in all epochs."""
    refused: int = 0
    """Lookup answers that the guard replaced."""
    started_ns: int = 0
    last_ns: int = 0
    ended_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    complete: bool = True
    """False once an event of this request is known to be missing."""
    recent_lookups: deque[Lookup] = field(default_factory=lambda: deque(maxlen=REMEMBERED_LOOKUPS))

    def last_lookup(self, connector_id: str) -> Lookup | None:
        """The latest lookup that this connector answered in the current epoch. A MultiConnector's children share the
        request's account, and each is asked and told on its own."""
        for lookup in reversed(self.recent_lookups):
            if lookup.epoch == self.epoch and lookup.connector_id == connector_id:
                return lookup
        return None

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON-ready data, without its witnesses."""
        data = asdict(self)
        del data["recent_lookups"]
        return data

    def apply(self, event: Event) -> None:
        """Enter one event, the next in the request's order."""
        self.last_ns = max(self.last_ns, event.end_ns)
        self.started_ns = self.started_ns or event.start_ns
        self.connector = event.connector or self.connector
        self.external = self.external or event.external or ""
        if event.role == SCHEDULER:
            self.recorder = event.recorder
        if event.role == SCHEDULER or not self.trace_id:  # a worker may not know the caller's trace
            self.trace_id = event.trace_id
        if event.role == SCHEDULER and event.epoch > self.epoch:
            self._begin_epoch(event.epoch)
        if event.error is not None:
            self.error = event.error
            self.status = "failed"
        match event:
            case Lookup():
                self._enter_lookup(event)
            case Alloc():
                self.allocated = event.allocated
                self.total = event.total or self.total
                if event.error is None:
                    self.status = "loading" if event.allocated and self._is_async(event) else "admitted"
            case Schedule():
                self.computed, self.scheduled = event.computed, event.scheduled
                self.status = "running"
            case Preempt():
                self.status = "preempted"
            case Load():
                self.loaded += event.count
            case Store():
                self.stored += event.count
            case Received():
                self.status = "admitted"
            case RequestStart():
                self.total = event.total
            case RequestEnd():
                self.status, self.outcome, self.ended_ns = "finished", event.outcome, event.end_ns
                self.total = event.total or self.total

    def abandon(self, at_ns: int) -> None:
        """The engine has ended, and the request with it."""
        self.ended_ns = at_ns
        if self.status != "failed":
            self.status = "abandoned"

    def _enter_lookup(self, event: Lookup) -> None:
        self.lookups += 1
        self.refused += event.refused is not None
        self.total, self.computed = event.total, event.computed
        self.matched, self.returned = event.matched, event.returned
        self.longest_match = max(self.longest_match, event.matched or 0)
        last = self.recent_lookups[-1] if self.recent_lookups else None
        if last is not None and (last.numbers(), last.epoch, last.connector_id) == (
            event.numbers(),
            event.epoch,
            event.connector_id,
        ):
            self.recent_lookups.pop()
        self.recent_lookups.append(event)

    def _is_async(self, alloc: Alloc) -> bool:
        last = self.last_lookup(alloc.connector_id)
        return last is not None and last.is_async

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.computed = self.matched = self.returned = self.allocated = self.scheduled = None


class Ledger:
    """All accounts, by engine and request; at most `limit` of them.

    When there are more, the longest finished leaves first, then the longest untouched: a request that comes back after
    that begins a new account, which is incomplete.
    """

    def __init__(self, *, limit: int = 1_000_000) -> None:
        self.limit = limit
        self.accounts: OrderedDict[tuple[str, str], Account] = OrderedDict()
        self.finished: OrderedDict[tuple[str, str], None] = OrderedDict()

    def account(self, engine: str, request: str) -> Account:
        """The account of a request, opened if there is none."""
        key = (engine, request)
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(engine, request)
        return account

    def apply(self, event: Event) -> None:
        """Enter one event in its request's account; events about no request leave no trace here."""
        if event.request is None:
            return
        account = self.account(event.engine, event.request)
        if isinstance(event, RequestStart) and account.ended_ns is not None:
            # The id is used again: another request, and another account.
            self.close((event.engine, event.request))
            account = self.account(event.engine, event.request)
        account.apply(event)
        if account.ended_ns is not None:
            self.finished[event.engine, event.request] = None

    def abandon(self, event: Heartbeat) -> list[tuple[str, str]]:
        """Close the accounts that a recorder left open when it said goodbye; returns their keys."""
        left = [key for key, a in self.accounts.items() if a.recorder == event.recorder and key not in self.finished]
        for key in left:
            self.accounts[key].abandon(event.end_ns)
            self.finished[key] = None
        return left

    def over_limit(self) -> list[tuple[str, str]]:
        """Keys of the accounts that must leave to respect the limit, finished ones first."""
        surplus = len(self.accounts) - self.limit
        if surplus <= 0:
            return []
        leaving = [key for key, _ in zip(self.finished, range(surplus), strict=False)]
        if len(leaving) < surplus:
            open_keys = (key for key in self.accounts if key not in self.finished)
            leaving += [key for key, _ in zip(open_keys, range(surplus - len(leaving)), strict=False)]
        return leaving

    def close(self, key: tuple[str, str]) -> Account | None:
        """Drop an account."""
        self.finished.pop(key, None)
        return self.accounts.pop(key, None)
