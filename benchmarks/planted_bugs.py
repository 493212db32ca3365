"""Bugs planted in three small host caches, and what `kvtrail check` says of each, without a probe: found or missed, after how
many steps, by which oracle. It goes on where it was stopped; `--afresh` forgets what is known."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from functools import partial

import apart

sys.path.insert(0, str(apart.ROOT / "tests" / "connector" / "simulate" / "check"))

STEPS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="scheduling steps for each bug, at the most")
    parser.add_argument("--afresh", action="store_true")
    arguments = parser.parse_args()
    apart.import_vllm()
    from planted.bugs import BUGS
    from planted.shelf_bugs import SHELF_BUGS
    from planted.store_bugs import STORE_BUGS

    known = apart.Known("planted-bugs.jsonl")
    stores: dict[str, Iterable[str]] = {"store_bugs": STORE_BUGS, "bugs": BUGS, "shelf_bugs": SHELF_BUGS}
    names = [f"planted.{module}:{name}" for module, bugs in stores.items() for name in bugs]
    missed = []
    for name in names:
        answer = {} if arguments.afresh else known.answers.get(name, {})
        if not answer.get("found") and answer.get("steps", 0) < arguments.steps:
            begun = time.monotonic()
            known.add(name, apart.run(partial(apart.checked, name, arguments.steps)))
            known.answers[name]["seconds"] = round(time.monotonic() - begun)
        answer = known.answers[name]
        if not answer.get("found"):
            missed.append(name)
        print(
            f"{name.partition(':')[2]:24} {answer.get('steps', 0):7,} {answer.get('profile', ''):16} {answer.get('found')}",
            flush=True,
        )
    print(f"{len(names) - len(missed)} of {len(names)} found; missed: {', '.join(missed) or 'none'}")
    sys.exit(len(missed) > 1)


if __name__ == "__main__":
    main()
