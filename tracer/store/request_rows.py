"""The stored form of a request in any database: columns for search, measures and lanes, and its account as JSON in the form
of the API's answer, written once."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.liveness.request_outcome import ending_of
from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.conditions import COUNTS, ENDING, TIMES, UNKNOWN

LARGEST = 2**62
"""The largest allowed sum: twice this still fits into a database's 64 bits."""
COLUMNS = (
    "request", "engine", "external", "trace_id", "connector", "status", "outcome", "verdict", "findings", "complete",
    "started_ns", "last_ns", "ended_ns", "lookups", "longest_match", "loaded", "stored", "epoch", "waited_ns", "recomputed",
    "loads",
)  # fmt: skip
"""The fields of an account by which requests are found and sorted."""
_SUMS = ("loaded", "stored", "waited_ns", "recomputed")
"""Fields that exceed 64 bits only if a recorder reports invalid numbers; they are capped."""
LOTS = 15
FINDINGS_TIER = LOTS
"""The lowest tier of requests that failed or have findings; the tiers of all others are below it."""
_TIMES = [(f"{name}_ns", name) for name in TIMES]
_REUSED = [cause.value for cause in REUSED]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RequestRow(Struct, frozen=True):
    """A request in the form in which a store holds it.

    Attributes:
        columns: the values of `COLUMNS`, by name.
        measures: its measures, as `measures_row` returns them; None if it was not measured.
        lane: its lane in the live view; None if it has none yet.
        body: the API's answer, as in `StoredRequest`.
    """

    columns: dict[str, Any]
    measures: dict[str, Any] | None
    lane: Lane | None
    body: bytes


class StoredRequest(Struct, frozen=True):
    """A request in a store: its engine, the end according to its account, and the JSON object of the API's answer.
    `stored[name]` is a field of that object: the account, with the `reason` of its end in place of its `outcome`, which also
    depends on the engine."""

    engine: str
    status: str
    outcome: str | None
    body: bytes

    def account(self) -> dict[str, Any]:
        """The account as Python data."""
        account: dict[str, Any] = _decode(self.body)
        return account

    def __getitem__(self, name: str) -> Any:
        return self.account()[name]


def row_of(account: Mapping[str, Any], lane: Lane | None = None) -> RequestRow:
    """The row of an account from `Account.as_dict`, with `verdict`, `findings`, `unknown` (the reason, if the verdict is
    unknown) and, if it was measured, the result of `measures_of`. Raises OverflowError or UnicodeError if it contains a
    number or a text that JSON cannot represent."""
    columns = {name: account[name] for name in COLUMNS}
    for name in _SUMS:
        if columns[name] > LARGEST:
            columns[name] = LARGEST
    answered = dict(account)
    answered["reason"] = answered.pop("outcome")
    return RequestRow(columns, measures_row(account) if "times" in account else None, lane, _encode(answered))


def measures_row(account: Mapping[str, Any]) -> dict[str, Any]:
    """The measures of an account by column: nanoseconds, tokens, and the names by which requests are grouped."""
    times, tokens = account["times"], {cause: min(count, LARGEST) for cause, count in account["tokens"].items()}
    asked = min(sum(tokens.values()), LARGEST)
    row: dict[str, Any] = {
        "request": account["request"], "engine": account["engine"], "started_ns": account["started_ns"],
        "last_ns": account["last_ns"], "tenant": account["identity"] or UNKNOWN,
        "connector": account["connector"] or UNKNOWN, "prefix": account["prefix"] or UNKNOWN,
        "asked": asked, "tokens": tokens, ENDING: ending_of(account["status"], account["outcome"]).value,
    }  # fmt: skip
    for column, name in _TIMES:
        row[column] = times.get(name)
    for cause in _REUSED:
        row[cause] = tokens.get(cause, 0)
    computed = asked - sum(row[cause] for cause in _REUSED) if tokens else None
    counts = (account["prompt"], computed, account["recomputed"], account["epoch"])
    for name, count in zip(COUNTS, counts, strict=True):
        row[name] = count if count is None else min(count, LARGEST)
    return row


def tier_of(lane: Lane) -> int:
    """The tier of a request, a pseudorandom function of its id: half of all requests are in tier 0, a quarter in tier 1, and
    so on. Requests that failed or have findings are in separate tiers above these."""
    lot = zlib.crc32(f"{lane.engine} {lane.request}".encode()) | 1 << (LOTS - 1)
    tier = (lot & -lot).bit_length() - 1
    return tier + FINDINGS_TIER if lane.findings or lane.status == "failed" else tier
