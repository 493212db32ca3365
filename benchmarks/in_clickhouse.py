"""The same history in a tracer's own SQLite file and in ClickHouse's engine: what it costs to write and to ask.

The engine is chDB, in this process. What a server adds is the way over HTTP, and what it spares is this machine's processor.

    python benchmarks/in_clickhouse.py
    python benchmarks/in_clickhouse.py --spans 3000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from big_traffic import batches

from kvtrail.tracer.ledger.lanes import Window
from kvtrail.tracer.store import Batch, FindingFilter
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

A_BATCH, A_PARCEL = 1000, 8
"""Requests that come together, and batches that are sent together: about 14,000 spans."""
ROUNDS = 7
HOUR_NS = 3600 * 10**9
SIDES = ("SQLite", "ClickHouse")


def written(parts: Iterator[Batch], own: SqliteWriter, fleet: ClickHouseWriter) -> tuple[int, list[float]]:
    """Write to both, in turns; returns the spans, and the seconds that each took. ClickHouse is sent many batches at once."""
    spans, number, took_s = 0, 0, [0.0, 0.0]
    while some := list(islice(parts, A_PARCEL)):
        spans += sum(part.chunk.spans for part in some if part.chunk is not None)
        began = time.perf_counter()
        for part in some:
            own.write(part)
        between = time.perf_counter()
        fleet.ship(list(enumerate(some, number + 1)))
        number += len(some)
        took_s[0] += between - began
        took_s[1] += time.perf_counter() - between
    return spans, took_s


def questions(reader: Reader, now_ns: int) -> dict[str, Callable[[], object]]:
    """What the pages ask."""
    some = reader.requests(limit=1000)[-1]
    return {
        "latest 100 requests": lambda: reader.requests(),
        "with drift": lambda: reader.requests(verdict="drift"),
        "part of an id": lambda: reader.requests(search=some["request"][5:17]),
        "one request": lambda: reader.request(some["external"]),
        "its spans": lambda: reader.spans_of(some),
        "totals": lambda: reader.totals(),
        "engines": lambda: reader.engines(),
        "latest findings": lambda: reader.findings(),
        "trend of findings": lambda: reader.finding_counts(FindingFilter(), step_ns=HOUR_NS),
        "savings of a day": lambda: reader.savings(since_ns=now_ns - 24 * HOUR_NS, until_ns=now_ns),
        "lanes of 15 minutes": lambda: reader.lanes(Window(from_ns=now_ns - HOUR_NS // 4, to_ns=now_ns), live=()),
        "lanes of all": lambda: reader.lanes(Window(from_ns=0, to_ns=now_ns), live=()),
    }


def milliseconds(ask: Callable[[], object]) -> float:
    """The median of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=300_000)
    options = parser.parse_args()
    now_ns = time.time_ns()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the engine runs until the process ends
        folder = Path(name)
        address = Address.of(f"chdb://{folder / 'clickhouse'}")
        writers = SqliteWriter(folder / "own.db"), ClickHouseWriter(address, tracer="one", retain_hours=10**6)
        spans, took_s = written(batches(options.spans, until_ns=now_ns, of=A_BATCH), *writers)
        own, fleet = SqliteReader(folder / "own.db"), ClickHouseReader(address)
        print(f"{spans:,} spans of {own.totals()['requests']:,} requests\n")
        print(f"{'':<22}{SIDES[0]:>12}{SIDES[1]:>12}{'ratio':>9}")

        def row(what: str, ours: float, theirs: float) -> None:
            print(f"{what:<22}{ours:>12.1f}{theirs:>12.1f}{theirs / ours:>9.2f}")

        row("writing, us a span", *(each / spans * 1e6 for each in took_s))
        parts = fleet.ask(
            "SELECT table = 'otel_traces', sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase()"
            " GROUP BY 1 ORDER BY 1"
        )
        row("disk, bytes a span", (folder / "own.db").stat().st_size / spans, sum(size for _, size in parts) / spans)
        asked = [questions(reader, now_ns) for reader in (own, fleet)]
        for what in asked[0]:
            row(f"{what}, ms", *(milliseconds(side[what]) for side in asked))


if __name__ == "__main__":
    main()
