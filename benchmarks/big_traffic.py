"""Synthetic traffic for a big store: requests of several engines over days, as batches for the store.

Half of the ids are vLLM's own, made of random digits; the other half are the caller's, which count up. The spans are
encoded by the recorder's own encoder, and the requests of an engine are mixed in them as they ran.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from wire import encoded

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.lanes import lane_of
from kvtrail.tracer.detect.savings import Cells, SavingsCounter
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.engines import described
from kvtrail.tracer.model.events import Alloc, Event, Lookup, Preempt, RequestEnd, RequestStart, Schedule
from kvtrail.tracer.model.events import Store as Stored
from kvtrail.tracer.model.findings import Finding, Severity, witnesses
from kvtrail.tracer.store import Batch, Chunk

ENGINES = 8
MODELS = ("small", "large")
CONNECTORS = ("OffloadConnector", "LMCacheConnectorV1")
DAYS = 3
EVENTS = 10
"""Events of one request."""
A_CHUNK = 512
"""Spans of a chunk, as many as recorders send at a time."""
DRIFTING = 50
"""One in so many requests has a finding, as in a fleet with a real bug."""
RULES = (
    ("stale-lookup", Severity.CRASH), ("over-report", Severity.WRONG_OUTPUT), ("alloc-mismatch", Severity.CRASH),
    ("store-too-far", Severity.WASTED_WORK),
)  # fmt: skip
S = 10**9


@dataclass
class Requests:
    """Some requests: their events by engine, and what is made of them."""

    events: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    rows: Batch = field(default_factory=Batch)

    def batches(self, savings: SavingsCounter) -> Iterator[Batch]:
        """Batches for the store: the spans of each engine in chunks, then the rows."""
        for number, (engine, events) in enumerate(self.events.items()):
            events.sort(key=lambda event: event.end_ns)
            resource = _resource(engine, MODELS[number % len(MODELS)])
            for at in range(0, len(events), A_CHUNK):
                some = events[at : at + A_CHUNK]
                requests = {(event.engine, event.request or "") for event in some}
                chunk = Chunk(encoded(some, resource), len(some), some[-1].end_ns, requests)
                yield Batch(chunk, engines={engine: described(resource)})
        self.rows.savings = savings.cells
        yield self.rows


def batches(spans: int, *, until_ns: int, of: int) -> Iterator[Batch]:
    """Batches of `of` requests, the oldest first. The last request began at `until_ns`, and nothing happens later."""
    dice = random.Random(1)
    count = max(1, spans // EVENTS)
    savings, some = SavingsCounter(), Requests()
    written = 0
    for number in range(count):
        at_ns = until_ns - (count - 1 - number) * DAYS * 86_400 * S // count
        events = [event for event in _request(number, at_ns, dice) if event.end_ns <= until_ns]
        written += len(events)
        _add(events, some, savings, drifts=number % DRIFTING == 0 and len(events) > 6)
        if len(some.rows.accounts) == of or number == count - 1:
            some.rows.settled = written
            yield from some.batches(savings)
            savings.cells, some = Cells(), Requests()


def _add(events: list[Event], some: Requests, savings: SavingsCounter, *, drifts: bool) -> None:
    account = Account(events[0].engine, events[0].request or "")
    for event in events:
        account.apply(event)
        savings.enter(event, account)
    some.events[account.engine] += events
    if drifts:
        some.rows.findings.append(_finding(events, account))
    verdict = "drift" if drifts else "ok" if account.complete else "unknown"
    some.rows.accounts.append({**account.as_dict(), "verdict": verdict, "findings": int(drifts)})
    some.rows.lanes.append(lane_of(account, verdict=verdict, findings=int(drifts)))


def _request(number: int, at: int, dice: random.Random) -> list[Event]:
    engine = f"engine-{number % ENGINES}"
    external = f"chat-{number}" if number % 2 else f"chatcmpl-{dice.getrandbits(128):032x}-0"
    whose = {
        "engine": engine, "recorder": engine, "connector": CONNECTORS[number % ENGINES % 3 == 2], "role": "scheduler",
        "rank": 0, "external": external, "request": f"{external}-{dice.getrandbits(32):08x}",
        "trace_id": f"{dice.getrandbits(128):032x}",
    }  # fmt: skip
    events: list[Event] = []

    def add(cls: Any, begin: int, end: int, *, epoch: int = 0, **fields: object) -> None:
        of_request = len(events)
        events.append(
            cls(
                **whose, start_ns=begin, end_ns=end, epoch=epoch, sequence=number // ENGINES * EVENTS + of_request,
                request_sequence=of_request, span_id=f"{number * EVENTS + of_request:016x}", **fields,
            )
        )  # fmt: skip

    add(RequestStart, at, at, total=700)
    for epoch in (0, 1):
        at += dice.randrange(10_000_000, 300_000_000)
        add(Lookup, at, at + 100_000, epoch=epoch, total=700, computed=64, matched=320, returned=256)
        add(Alloc, at + 200_000, at + 200_000, epoch=epoch, total=700, allocated=256, hit_sources=("host:256",))
        at += dice.randrange(50_000_000, 900_000_000)
        add(Schedule, at, at, epoch=epoch, computed=320, scheduled=380)
        if epoch == 0:
            add(Stored, at, at + 20_000_000, epoch=epoch, start=320, count=380, bytes=380 * 2**15)
            add(Preempt, at + 30_000_000, at + 30_000_000, epoch=epoch)
    # One in a thousand runs for hours, so windows must find requests that began long before.
    at += dice.randrange(2, 8) * 3600 * S if number % 1000 == 0 else dice.randrange(1, 30) * S
    add(RequestEnd, at, at, epoch=1, total=800, output=100, outcome="stopped")
    return events


def _finding(events: list[Event], account: Account) -> Finding:
    rule, severity = RULES[events[0].sequence // EVENTS // DRIFTING % len(RULES)]
    event, last = events[1], events[6]
    return Finding(
        rule=rule, title="What was answered no longer holds", severity=severity, engine=event.engine,
        request=account.request, external=account.external, trace_id=event.trace_id, connector=event.connector,
        epoch=1, first_ns=event.start_ns, last_ns=last.end_ns, count=1, healed=0,
        numbers={"answered": 256, "computed": 64, "matched": 320}, witness=witnesses([event, last]),
        explanation="Let L1 = the lookup with 64 tokens computed, which found 320, and L2 = the same one epoch later. At L2"
        " other tokens were computed, and so the answer of 256 cannot hold for both.",
        hint="Forget the answers of a request when it is preempted.",
    )  # fmt: skip


def _resource(engine: str, model: str) -> dict[str, str]:
    return {
        "service.name": "vllm", "host.name": f"host-of-{engine}", semconv.MODEL.key: model,
        semconv.ENGINE_VERSION.key: "0.32.0",
    }  # fmt: skip
