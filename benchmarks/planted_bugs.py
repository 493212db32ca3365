"""Bugs planted in small host caches, and what `kvtrail check` says of each, without a probe: found or missed, after how many
steps, by which oracle. With --correct it checks connectors without a bug, and must find nothing. It resumes where it was
stopped; `--afresh` starts over."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import apart
from wilson import interval

sys.path.insert(0, str(apart.ROOT / "tests" / "connector" / "simulate" / "check"))
sys.path.insert(0, str(apart.ROOT / "docs" / "conformance"))

STEPS = 20_000
CORRECT = (
    "my_connector:MyConnector", "planted.shelf:Shelf", "planted.tiered_store:TieredConnector",
    "planted.chunk_store:ChunkStore", "planted.thread_store:ThreadStore", "planted.reporting:Reporting",
    "planted.probed:HostCache", "OffloadConnector",
)  # fmt: skip
"""Connectors without a bug: with stores and loads within a step and between steps, and with eviction. The last two have a
probe."""


class Answers:
    """The answers of sessions, each in a process of its own, in a file: what is known is not run again."""

    def __init__(self, file: str, steps: int, afresh: bool) -> None:
        self._known, self._steps, self._afresh = apart.Known(file), steps, afresh

    def of(self, connector: str, seed: int = 0) -> dict[str, Any]:
        """What a session with this connector says, which is printed too."""
        name = f"{connector} {seed}" if seed else connector
        answer = {} if self._afresh else self._known.answers.get(name, {})
        if not answer.get("found") and answer.get("steps", 0) < self._steps:
            begun = time.monotonic()
            answer = apart.run(partial(apart.checked, connector, self._steps, seed=seed))
            self._known.add(name, answer | {"seconds": round(time.monotonic() - begun)})
        found = answer.get("found", answer.get("died") and "the process died")
        print(
            f"{name.partition(':')[2] or name:32} {answer.get('steps', 0):7,} {answer.get('profile', ''):16} {found}",
            flush=True,
        )
        return answer


def planted(answers: Answers, only: str | None) -> bool:
    """Print what is found of the bugs, by module, and whether more than one is missed."""
    from planted.bugs import BUGS
    from planted.reported_bugs import REPORTED_BUGS
    from planted.shelf_bugs import SHELF_BUGS
    from planted.store_bugs import STORE_BUGS

    modules: dict[str, Iterable[str]] = {
        "store_bugs": STORE_BUGS, "bugs": BUGS, "shelf_bugs": SHELF_BUGS, "reported_bugs": REPORTED_BUGS,
    }  # fmt: skip
    misses = False
    for module, bugs in modules.items():
        if only not in (None, module):
            continue
        missed = [name for name in bugs if not answers.of(f"planted.{module}:{name}").get("found")]
        of = len(list(bugs))
        low, high = interval(of - len(missed), of)
        print(
            f"{module}: {of - len(missed)} of {of} found ({low:.0%} to {high:.0%}); missed: {', '.join(missed) or 'none'}"
        )
        misses |= len(missed) > 1
    return misses


def correct(answers: Answers, seeds: Iterable[int]) -> bool:
    """Print what is found in connectors without a bug, and whether that is anything."""
    said = [answers.of(name, seed) for seed in seeds for name in CORRECT]
    wrong = sum(bool(each.get("found", True)) for each in said)
    print(f"{sum(each.get('steps', 0) for each in said):,} steps, {len(said)} sessions, {wrong} with a finding")
    return wrong > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="scheduling steps of a session, at the most")
    parser.add_argument("--only", help="bugs of this module alone")
    parser.add_argument("--correct", type=int, metavar="SEEDS", help="so many sessions of each connector without a bug")
    parser.add_argument("--afresh", action="store_true")
    arguments = parser.parse_args()
    apart.import_vllm()
    if arguments.correct:
        sys.exit(correct(Answers("correct.jsonl", arguments.steps, arguments.afresh), range(arguments.correct)))
    sys.exit(planted(Answers("planted-bugs.jsonl", arguments.steps, arguments.afresh), arguments.only))


if __name__ == "__main__":
    main()
