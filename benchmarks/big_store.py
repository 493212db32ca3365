"""A store of ten million spans, or as many as are wanted, and what everything that people look at costs in it.

The rows are made with the store's own writer, a batch a time, as a sidecar would have left them: requests of several engines
over days, their spans, accounts, lanes, findings and sums.

    python benchmarks/big_store.py make /tmp/small.db --spans 100000
    python benchmarks/big_store.py make /tmp/big.db --spans 10000000
    python benchmarks/big_store.py ask /tmp/big.db /tmp/small.db      every question of the dashboard's pages
    python benchmarks/big_store.py pages /tmp/big.db /tmp/small.db    every page, in a real Chromium
    python benchmarks/big_store.py windows /tmp/big.db                windows of the live view, beside plain queries
    python benchmarks/big_store.py write /tmp/new.db --against OTHER  writing, beside another checkout of kvtrail
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from big_traffic import DAYS, ENGINES, S, batches
from rounds import printed, tell

from kvtrail.tracer.detect.lanes import Window
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

A_BATCH = 2000
"""Requests that are written at once."""
A_FLUSH = 50
"""The same where writing itself is measured: what engines send within a moment."""
ROUNDS = 15
PAIRS = 7
PLAIN = "SELECT count(*), sum(length(attributes)) FROM spans"
"""What a view that reads spans would have to do at the very least."""


def make(path: Path, spans: int) -> None:
    """Write the store; its last request begins now."""
    writer = SqliteWriter(path)
    # The indexes are bigger than a sidecar's cache. That is a matter of writing, and this store is for reading.
    writer._db.execute("PRAGMA cache_size=-500000")
    began, written = time.monotonic(), 0
    for batch in batches(spans, until_ns=time.time_ns(), of=A_BATCH):
        writer.write(batch)
        written += len(batch.spans)
        rate = written / (time.monotonic() - began)
        print(f"\r{written:,} spans, {rate:,.0f} a second", end="", flush=True)
    writer.close()
    print(f"\r{written:,} spans in {path}, {path.stat().st_size / 2**30:.2f} GiB")


def write(path: Path, spans: int) -> None:
    """Print the processor time of writing, in microseconds a span. A request comes in three parts, its account with each."""
    told = [part for batch in batches(spans, until_ns=time.time_ns(), of=A_FLUSH) for part in _parts(batch)]
    writer = SqliteWriter(path)
    began = time.process_time()
    for batch in told:
        writer.write(batch)
    took_s = time.process_time() - began
    writer.close()
    print(took_s / sum(len(batch.spans) for batch in told) * 1e6)


def _parts(batch: Batch) -> Iterator[Batch]:
    third = -(-len(batch.spans) // 3)
    running = [{**account, "status": "running", "ended_ns": None} for account in batch.accounts]
    yield Batch(batch.spans[:third], running, lanes=batch.lanes)
    yield Batch(batch.spans[third : 2 * third], running, lanes=batch.lanes)
    yield Batch(batch.spans[2 * third :], batch.accounts, batch.findings, batch.efficiency, batch.lanes)


def compare_writing(path: Path, spans: int, other: Path) -> None:
    """Write with this checkout and with the other one by turns."""
    roots = (Path(__file__).parents[1], other)
    held: list[list[float]] = [[], []]
    for _ in range(PAIRS):
        for root, times in zip(roots, held, strict=True):
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()
            times.append(printed(root, __file__, "write", str(path), "--spans", str(spans)))
    tell("writing", held[0], held[1], "us of a processor per span", ("this", "the other"))


def windows(path: Path) -> None:
    """Measure windows of several lengths at random places, and beside them a plain query for the same requests."""
    reader = SqliteReader(path)
    dice = random.Random(2)
    live = [f"engine-{n}" for n in range(ENGINES)]
    end_ns = reader.requests(limit=1)[0]["started_ns"]
    begin_ns = end_ns - DAYS * 86_400 * S
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
            begin = dice.randrange(begin_ns, max(begin_ns + 1, end_ns - span_s * S))
            window = Window(from_ns=begin, to_ns=begin + span_s * S, search=search)
            lanes_ms.append(_timed(partial(reader.lanes, window, live=live)))
            found = reader.lanes(window, live=live)
            reader.marks(window, found.lanes, limit=2000)
            if span_s <= 3600:
                values = [window.from_ns, window.to_ns]
                plain_ms.append(_timed(partial(reader.query, PLAIN, ["end_ns BETWEEN ? AND ?"], values)))
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
    parser.add_argument("what", choices=("make", "ask", "pages", "windows", "write"))
    parser.add_argument("store", type=Path)
    parser.add_argument("others", type=Path, nargs="*", help="smaller stores, to compare with")
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--screenshots", type=Path, help="a folder for those of `pages`")
    options = parser.parse_args()
    stores = [options.store, *options.others]
    if options.what == "make":
        make(options.store, options.spans)
    elif options.what == "windows":
        windows(options.store)
    elif options.what == "ask":
        from big_endpoints import table as ask

        ask(stores)
    elif options.what == "pages":
        from big_pages import table as open_all

        open_all(stores, folder=options.screenshots)
    elif options.against is not None:
        compare_writing(options.store, options.spans, options.against)
    else:
        write(options.store, options.spans)


if __name__ == "__main__":
    main()
