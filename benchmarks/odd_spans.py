"""One odd span costs one span: recorded spans with one or two things changed, through the sidecar, its store and its api.

`tests/malformed_input.py` has what is changed and what must hold. A seed is one store: three lives of a sidecar, each with 60
requests, some of them over HTTP, and every question of the api at its end. What fails is printed with its seed; exit code 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from malformed_input import tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="spans to change")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--store", type=Path, help="folder for the stores, one at a time; a temporary one by default")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    sums: Counter[str] = Counter()
    failed = 0
    seed, started_s = arguments.seed, time.monotonic()
    while sums["inputs"] < arguments.inputs:
        with tempfile.TemporaryDirectory(dir=arguments.store) as folder:
            try:
                sidecar = tried(Path(folder), seed)
            except Exception as error:
                failed += 1
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:500]}")
                sums["inputs"] += 1  # or it would never end
            else:
                for name in ("inputs", "malformed", "refused", "starts", "answers"):
                    sums[name] += getattr(sidecar, name)
                sums["errors"] += sidecar.errors.total()
                if sidecar.errors:
                    print(f"seed {seed}: {dict(sidecar.errors)}")
        seed += 1
        if sys.stderr.isatty():
            print(f"\r{sums['inputs']:,} inputs ", end="", file=sys.stderr, flush=True)
    print(
        f"{sums['inputs']:,} spans changed, seeds {arguments.seed} to {seed - 1}, {time.monotonic() - started_s:.0f} s:"
        f" {failed} stores failed, {sums['errors']} errors inside the sidecar; {sums['malformed']:,} spans malformed,"
        f" {sums['refused']:,} not readable, {sums['starts']:,} starts, {sums['answers']:,} answers of the api"
    )
    sys.exit(1 if failed or sums["errors"] else 0)


if __name__ == "__main__":
    main()
