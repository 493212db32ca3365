"""All accounts: opened when a request is first heard of, closed when their time is over, and never too many."""

from __future__ import annotations

from collections import OrderedDict

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.model.events import Heartbeat

MOST_REQUESTS = 1_000_000
"""Accounts held, unless one is told otherwise."""


class Ledger:
    """All accounts, by engine and request; at most `limit` of them.

    When there are more, the longest finished leaves first, then the longest untouched: a request that comes back after
    that begins a new account, which is incomplete.
    """

    def __init__(self, *, limit: int = MOST_REQUESTS) -> None:
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
