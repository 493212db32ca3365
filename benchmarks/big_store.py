"""A store of ten million spans, or any other number, and what each question and page of the dashboard costs in it.

The store's own writer writes the rows in batches, as a sidecar would: requests of several engines over days, with their
spans, accounts, lanes, findings and sums.

    python benchmarks/big_store.py make /tmp/small.db --spans 100000
    python benchmarks/big_store.py make /tmp/big.db --spans 10000000
    python benchmarks/big_store.py ask /tmp/big.db /tmp/small.db      every question of the dashboard's pages
    python benchmarks/big_store.py pages /tmp/big.db /tmp/small.db    every page, in a real Chromium
    python benchmarks/big_store.py write /tmp/new.db --against OTHER  writing, compared with another checkout
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

import rounds
from big_traffic import batches

from kvtrail.tracer.store.sqlite.store import SqliteWriter

A_BATCH = 20_000
"""Requests in a batch."""
A_FLUSH = 50
"""The same where writing is measured: what begins at about the same time."""
PAIRS = 7


def make(path: Path, spans: int) -> None:
    """Write a store with a last request that begins now."""
    writer = SqliteWriter(path)
    # The indexes outgrow a sidecar's cache, which would slow down writing a store that is only for reading.
    writer._db.execute("PRAGMA cache_size=-4000000")
    writer._db.execute("PRAGMA wal_autocheckpoint=50000")
    writer._db.execute("PRAGMA synchronous=OFF")
    began, written = time.monotonic(), 0
    for batch in batches(spans, until_ns=time.time_ns(), of=A_BATCH):
        writer.write(batch)
        while writer.fold():
            pass
        written += 0 if batch.chunk is None else batch.chunk.spans
        rate = written / (time.monotonic() - began)
        print(f"\r{written:,} spans, {rate:,.0f} a second", end="", file=sys.stderr, flush=True)
    writer.close()
    print(f"\r{written:,} spans in {path}, {path.stat().st_size / 2**30:.2f} GiB")


def write(path: Path, spans: int) -> None:
    """Print the processor time of writing a span, in microseconds, into a new store beside the path."""
    parts = list(batches(spans, until_ns=time.time_ns(), of=A_FLUSH))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        writer = SqliteWriter(Path(folder) / path.name)
        began = time.process_time()
        for batch in parts:
            writer.write(batch)
            while writer.fold():
                pass
        took_s = time.process_time() - began
        writer.close()
    print(took_s / spans * 1e6)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "ask", "pages", "write"))
    parser.add_argument("store", type=Path)
    parser.add_argument("others", type=Path, nargs="*", help="smaller stores to compare with")
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--screenshots", type=Path, help="a folder for screenshots of `pages`")
    options = parser.parse_args()
    stores = [options.store, *options.others]
    if options.what == "make":
        gc.disable()  # a tenth of the time, for nothing: what is made here holds no circles
        make(options.store, options.spans)
    elif options.what == "ask":
        from big_endpoints import table as ask

        ask(stores)
    elif options.what == "pages":
        from big_pages import table as open_all

        open_all(stores, folder=options.screenshots)
    elif options.against is not None:
        arguments = ("write", options.store, "--spans", options.spans)
        sides = {"this": (Path(__file__).parents[1], arguments), "the other": (options.against, arguments)}
        rounds.compare("writing", __file__, sides, PAIRS, "us of a processor per span")
    else:
        write(options.store, options.spans)


if __name__ == "__main__":
    main()
