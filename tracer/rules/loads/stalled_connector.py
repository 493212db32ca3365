from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, Lookup, Received, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.transfers import SEVERAL
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.loads.stuck_load import within_s
from kvtrail.tracer.rules.rule import EngineRule

MISSED_S = 300.0
"""Minimum time in seconds without the end of a transfer while several are open; vLLM #46019 uses the same limit for a job."""
LONGEST = 10
"""The deadline is this multiple of the longest transfer so far, if that is longer: a slow store is not a dead one."""
LEAST_CALLERS = 3
"""Minimum number of consecutive aborted requests: one or two callers may have aborted for unrelated reasons."""


ABORTED = "aborted"
"""The outcome of a request that its caller ended."""


ASKED_AGAIN_NS = 5 * 10**9
"""A request was still being deferred if its last lookup was at most this long before its end."""


@dataclass(frozen=True, slots=True)
class AbortedInARow:
    """Consecutive requests that were aborted while they waited for one connector, with no completed wait in between.

    Attributes:
        first: the event with which the first of them began to wait.
        last: the end of the latest.
        count: their number.
        waited_ns: the time for which the connector is known to have done nothing since the first began to wait.
        counted_ns: the part of it that counts.
    """

    first: Event
    last: RequestEnd
    count: int
    waited_ns: int = 0
    counted_ns: int = 0


@dataclass(slots=True)
class AbortedWaits:
    """The requests that wait for each connector of an engine, and those that were aborted while waiting.

    Attributes:
        rows: the consecutive aborted requests, by connector.
    """

    rows: dict[str, AbortedInARow] = field(default_factory=dict)
    _deferred: dict[str, tuple[Lookup, Lookup]] = field(default_factory=dict)
    """By request, the first and the last of the current run of answers 'ask me later'."""

    def after(self, event: RequestEnd | Heartbeat, engine: Engine) -> list[AbortedInARow]:
        """The rows that an event changes, by the end of one more request or by the passage of time. The load of an aborted
        request can still be received; its lookup can no longer be answered."""
        if type(event) is RequestEnd:
            since = self._waited_since(event, engine)
            before = None if since is None else self.rows.get(since.connector_id)
            rows = [] if since is None else [AbortedInARow(since, event, 1)]
            if before is not None:
                rows = [replace(before, last=event, count=before.count + 1)]
        else:
            rows = [row for row in self.rows.values() if type(row.first) is Alloc]
        if not rows:
            return rows
        until_ns, stepping = engine.time.of(event), engine.clocks.stepping
        begun_ns = [engine.time.of(row.first) for row in rows]
        return [
            replace(row, waited_ns=until_ns - from_ns, counted_ns=stepping.between(from_ns, until_ns))
            for row, from_ns in zip(rows, begun_ns, strict=True)
        ]

    def _waited_since(self, event: RequestEnd, engine: Engine) -> Event | None:
        """The event since which an aborted request had waited for a connector; None if it did not wait, or if the scheduler
        could not ask the connector again."""
        if event.outcome != ABORTED:
            return None
        if (load := engine.loads.get(event.request or "")) is not None:
            return load
        first, last = self._deferred.get(event.request or "", (None, None))
        if last is not None:
            asked_ns, until_ns = engine.time.of(last), engine.time.of(event)
            passed_ns = until_ns - asked_ns
            if passed_ns > ASKED_AGAIN_NS and 2 * engine.clocks.spare.between(asked_ns, until_ns) < passed_ns:
                return None
        return first

    def _enter_lookup(self, event: Lookup, engine: Engine) -> None:
        request = event.request or ""
        if event.returned is None and event.error is None:
            first, _ = self._deferred.get(request, (event, event))
            self._deferred[request] = (first, event)
        elif self._deferred.pop(request, None) is not None:
            self.rows.pop(event.connector_id, None)

    def _enter_received(self, event: Received, engine: Engine) -> None:
        self.rows.clear()  # a MultiConnector reports the end of a load to all its children

    def _enter_request(self, event: RequestEnd, engine: Engine) -> None:
        self._enter_heartbeat(event, engine)
        self._deferred.pop(event.request or "", None)

    def _enter_heartbeat(self, event: RequestEnd | Heartbeat, engine: Engine) -> None:
        for row in self.after(event, engine):
            self.rows[row.first.connector_id] = row


class StalledConnector(EngineRule[Heartbeat | RequestEnd]):
    State = AbortedWaits

    def judge(self, event: Heartbeat | RequestEnd, engine: Engine) -> Judgement:
        callers, transfers = _judge_callers(event, engine), None
        if isinstance(event, Heartbeat):
            transfers = _judge_transfers(event, engine)
        drifts = [each for found in (callers, transfers) if isinstance(found, tuple) for each in found]
        return tuple(drifts) or callers or transfers


def _judge_transfers(event: Heartbeat, engine: Engine) -> Judgement:
    """Whether no transfer has ended for a long time although several are open."""
    if event.scheduler_step is None:
        return None
    drifts, is_known = [], False
    for (connector_id, direction), ends in engine.transfer_ends.items():
        if ends.last is None or ends.ended < SEVERAL or not ends.open:
            continue
        stores = connector_id in engine.storing or (connector_id, "save") in engine.transfer_ends
        if direction == "load" and not stores:
            continue
        is_known = True
        if ends.missed_ns < max(MISSED_S * 1e9, LONGEST * ends.longest_ns):
            continue
        numbers: dict[str, Any] = {
            "where": "open transfers",
            "direction": direction,
            "ended": ends.ended,
            "open": len(ends.open),
            "missed_s": round(ends.missed_ns / 1e9, 1),
            "steps": ends.steps,
            "longest_s": round(ends.longest_ns / 1e9, 1),
        }
        witness = [ends.last, next(iter(ends.open.values())), event]
        drifts.append(Drift(numbers, witness, connector=ends.last.connector))
    return tuple(drifts) or (OK if is_known else None)


def _judge_callers(event: RequestEnd | Heartbeat, engine: Engine) -> Judgement:
    """Whether several consecutive requests were aborted while they waited for the connector."""
    aborted: AbortedWaits = engine.states[AbortedWaits]
    rows = aborted.after(event, engine)
    late = [row for row in rows if _is_late(row, engine)]
    found = [row for row in late if not _is_late(aborted.rows.get(row.first.connector_id), engine)]
    if not found:  # several in a row make one finding
        return OK if rows else None
    return tuple(
        Drift(
            {
                "where": "aborted requests",
                "waited_s": round(row.waited_ns / 1e9, 1),
                "counted_s": round(row.counted_ns / 1e9, 1),
                "requests": row.count,
            },
            [row.first, row.last],
        )
        for row in found
    )


def _is_late(row: AbortedInARow | None, engine: Engine) -> bool:
    if row is None or row.count < LEAST_CALLERS:
        return False
    tokens = row.first.allocated if isinstance(row.first, Alloc) else 0
    return row.counted_ns / 1e9 >= within_s(row.first, tokens, engine)
