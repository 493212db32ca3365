"""Hit rates that the miss-ratio curve of a run with a store of one size gives, beside runs with stores of other sizes.

    python benchmarks/capacity.py [--connector LMCache]

With the OffloadConnector on the bare scheduler; with a real LMCache in a whole engine on the CPU. All are shares of the
tokens that were asked for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tracer" / "capacity"))

import real_lmcache
from saved import given, saved_of
from test_audit_savings import played

LMCACHE = "0.5.6"
SIZES = (20, 40, 60, 90, 130, 180, 260)
"""Of stores, in chunks of 64 tokens."""
RECORDED = 60
"""The size of the store with the recording that says what the others give."""


class Run(NamedTuple):
    """What a run gave, and what it says that other sizes would give."""

    given: float
    others: Mapping[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", action="append", choices=sorted(RUNS))
    options = parser.parse_args()
    print(f"| connector | chunks | predicted from {RECORDED} | measured | difference |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for connector in options.connector or RUNS:
        run = RUNS[connector]
        recorded = run(RECORDED, SIZES)
        for size in SIZES:
            measured = recorded.given if size == RECORDED else run(size, (size,)).given
            predicted = recorded.others[size]
            difference = f"{(predicted - measured) * 100:+.2f}"
            print(f"| {connector} | {size} | {predicted:.2%} | {measured:.2%} | {difference} |", flush=True)


def with_offload(chunks: int, sizes: Sequence[int]) -> Run:
    """The OffloadConnector."""
    (saved,) = saved_of(played(chunks, 250).events)
    return Run(saved.worth.hit_share or 0, {size: given(saved, size) for size in sizes})


def with_lmcache(chunks: int, sizes: Sequence[int]) -> Run:
    """LMCache."""
    with tempfile.TemporaryDirectory() as folder:
        ran = real_lmcache.capacity(Path(folder), LMCACHE, chunks=chunks, sizes=sizes, seed=5)
    return Run(ran["given"], dict(ran["points"]))


RUNS: Mapping[str, Callable[[int, Sequence[int]], Run]] = {
    "OffloadConnector": with_offload,
    "LMCache": with_lmcache,
}

if __name__ == "__main__":
    main()
