"""A store of ten million spans, or as many as are wanted, and what a window of the live view costs in it.

The rows are made with the store's own writer, a batch a time, as a sidecar would have left them: requests of several engines
over days, their spans, accounts, lanes and findings.

    python benchmarks/big_store.py make /tmp/big.db --spans 10000000
    python benchmarks/big_store.py ask /tmp/big.db
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tracer.account import Account
from tracer.events import Event, Lookup, Preempt, RequestEnd, RequestStart, Schedule
from tracer.events import Store as Stored
from tracer.findings import Finding, Severity
from tracer.lanes import Window, lane_of
from tracer.semconv import SCOPE
from tracer.spans import Span
from tracer.store import Batch
from tracer.store.sqlite import SqliteReader, SqliteWriter

ENGINES = 8
DAYS = 3
EVENTS = 10
"""Of one request."""
A_BATCH = 2000
"""Requests that are written at once."""
DRIFTING = 500
"""One of so many requests has a finding."""
S = 10**9
BEGIN_NS = 1_764_547_200 * S
ROUNDS = 15
PLAIN = "SELECT count(*), sum(length(attributes)) FROM spans"
"""What a view that reads spans would have to do at the very least."""


def requests(spans: int) -> Iterator[list[Event]]:
    """The events of request after request, in the order of their arrival."""
    dice = random.Random(1)
    count = max(1, spans // EVENTS)
    for number in range(count):
        yield _request(number, BEGIN_NS + number * DAYS * 86_400 * S // count, dice)


def _request(number: int, at: int, dice: random.Random) -> list[Event]:
    engine = f"engine-{number % ENGINES}"
    told: list[Event] = []

    def tell(cls: Any, begin: int, end: int, **fields: object) -> None:
        told.append(
            cls(
                engine=engine, recorder=engine, sequence=0, connector="OffloadConnector", role="scheduler", rank=0,
                start_ns=begin, end_ns=end, request=f"chat-{number}-{number:08x}", external=f"chat-{number}",
                span_id=f"{number * 16 + len(told):016x}", trace_id=f"{number:032x}", request_sequence=len(told),
                **fields,
            )
        )  # fmt: skip

    tell(RequestStart, at, at, total=700)
    for _ in range(4):
        at += dice.randrange(10_000_000, 300_000_000)
        tell(Lookup, at, at + 100_000, total=700, computed=0, matched=256, returned=256)
    tell(Schedule, at, at, computed=256, scheduled=444)
    at += dice.randrange(50_000_000, 900_000_000)
    tell(Stored, at - 20_000_000, at, start=256, count=444)
    tell(Preempt, at + 1_000_000, at + 1_000_000)
    at += dice.randrange(50_000_000, 900_000_000)
    tell(Schedule, at, at, computed=0, scheduled=700)
    # One in a thousand runs for hours: a window must find it though it began long before.
    at += dice.randrange(2, 8) * 3600 * S if number % 1000 == 0 else dice.randrange(1, 30) * S
    tell(RequestEnd, at, at, total=800, output=100, outcome="stopped")
    return told


def make(path: Path, spans: int) -> None:
    """Write the store."""
    writer = SqliteWriter(path)
    began, written, batch = time.monotonic(), 0, Batch()
    for number, told in enumerate(requests(spans)):
        account = Account(told[0].engine, told[0].request or "")
        for event in told:
            account.apply(event)
            attributes = {f"kvtrail.{name}": value for name, value in event.numbers().items()}
            span = Span(
                trace_id=event.trace_id, span_id=event.span_id, parent_id="", name=event.kind, start_ns=event.start_ns,
                end_ns=event.end_ns, attributes=attributes, resource={"service.name": "vllm"}, scope=SCOPE,
            )  # fmt: skip
            batch.spans.append((span, event))
        found = int(number % DRIFTING == 0)
        if found:
            batch.findings.append(_finding(told[2]))
        verdict = "drift" if found else "ok"
        batch.accounts.append({**account.as_dict(), "verdict": verdict, "findings": found})
        batch.lanes.append(lane_of(account, verdict=verdict, findings=found))
        written += len(told)
        if len(batch.accounts) == A_BATCH:
            writer.write(batch)
            batch = Batch()
            rate = written / (time.monotonic() - began)
            print(f"\r{written:,} spans, {rate:,.0f} a second", end="", flush=True)
    writer.write(batch)
    writer.close()
    print(f"\r{written:,} spans in {path}, {path.stat().st_size / 2**30:.2f} GiB")


def _finding(event: Event) -> Finding:
    return Finding(
        rule="stale-lookup", title="A cached answer", severity=Severity.CRASH, engine=event.engine,
        request=event.request or "", external=event.external or "", trace_id=event.trace_id, connector=event.connector,
        epoch=0, first_ns=event.start_ns, last_ns=event.start_ns, count=1, healed=0, numbers={}, witness=[], hint="",
    )  # fmt: skip


def ask(path: Path) -> None:
    """Measure windows of several lengths at random places, and beside them a plain query for the same requests."""
    reader = SqliteReader(path)
    dice = random.Random(2)
    live = [f"engine-{n}" for n in range(ENGINES)]
    end_ns = BEGIN_NS + DAYS * 86_400 * S
    print(f"{reader.last_number():,} spans; milliseconds, median and quartiles of {ROUNDS} windows")
    print(
        f"{'window':>10} {'search':>8} {'in it':>9} {'shown':>6}  {'lanes':>22}  {'spans of the window, counted':>28}"
    )
    for name, span_s, search in (
        ("1 s", 1, ""), ("1 min", 60, ""), ("5 min", 300, ""), ("1 h", 3600, ""), ("12 h", 43_200, ""),
        ("3 days", DAYS * 86_400, ""), ("5 min", 300, "chat-77"), ("3 days", DAYS * 86_400, "nobody"),
    ):  # fmt: skip
        lanes_ms, plain_ms = [], []
        for _ in range(ROUNDS):
            begin = dice.randrange(BEGIN_NS, max(BEGIN_NS + 1, end_ns - span_s * S))
            window = Window(from_ns=begin, to_ns=begin + span_s * S, search=search)
            lanes_ms.append(_timed(partial(reader.lanes, window, live=live)))
            found = reader.lanes(window, live=live)
            reader.marks(window, found.lanes, limit=2000)
            if span_s <= 3600:
                values = [window.from_ns, window.to_ns]
                plain_ms.append(_timed(partial(reader._query, PLAIN, ["end_ns BETWEEN ? AND ?"], values)))
        said = f"{name:>10} {search:>8} {found.known:>9,} {len(found.lanes):>6,}  {_spread(lanes_ms):>22}"
        print(f"{said}  {_spread(plain_ms) if plain_ms else 'not asked':>28}{'' if found.is_whole else '  given up'}")


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "ask"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--spans", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.what == "make":
        make(options.store, options.spans)
    else:
        ask(options.store)


if __name__ == "__main__":
    main()
