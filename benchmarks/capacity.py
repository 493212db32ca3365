"""Hit rates estimated from the accesses recorded with a store of one size, beside runs with stores of other sizes, and the
offline optimum.

    python benchmarks/capacity.py [--connector LMCache] [--seed 5]

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
from test_savings_command import played

from kvtrail.tracer.capacity.estimate import estimate
from kvtrail.tracer.capacity.stream import streams_of

LMCACHE = "0.5.6"
SIZES = (20, 40, 60, 90, 130, 180, 260)
"""Of stores, in chunks of 64 tokens."""
RECORDED = 60
"""The size of the store with the recording that says what the others give."""


class Run(NamedTuple):
    """What a run gave, and what it says of other sizes: what they would give, and could give at most."""

    given: float
    others: Mapping[int, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", action="append", choices=sorted(RUNS))
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    print(f"| connector | chunks | predicted from {RECORDED} | measured | difference | bound |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for connector in options.connector or RUNS:
        run = RUNS[connector]
        recorded = run(RECORDED, SIZES, options.seed)
        for size in SIZES:
            measured = recorded.given if size == RECORDED else run(size, (size,), options.seed).given
            predicted, bound = recorded.others[size]
            difference = f"{(predicted - measured) * 100:+.2f}"
            print(
                f"| {connector} | {size} | {predicted:.2%} | {measured:.2%} | {difference} | {bound:.2%} |", flush=True
            )


def with_offload(chunks: int, sizes: Sequence[int], seed: int) -> Run:
    """The OffloadConnector."""
    (stream,) = streams_of(played(chunks, seed=seed).events)
    points = estimate(stream, sizes=sizes).points
    others = {each.chunks: (each.hits / stream.asked, each.bound / stream.asked) for each in points}
    return Run(stream.taken / stream.asked, others)


def with_lmcache(chunks: int, sizes: Sequence[int], seed: int) -> Run:
    """LMCache."""
    with tempfile.TemporaryDirectory() as folder:
        ran = real_lmcache.capacity(Path(folder), LMCACHE, chunks=chunks, sizes=sizes, seed=seed)
    asked = ran["asked"]
    return Run(ran["taken"] / asked, {size: (hits / asked, bound / asked) for size, hits, bound in ran["points"]})


RUNS: Mapping[str, Callable[[int, Sequence[int], int], Run]] = {
    "OffloadConnector": with_offload,
    "LMCache": with_lmcache,
}

if __name__ == "__main__":
    main()
