"""Runs one thing after the other, each in a process of its own that begins where this one is: with vLLM imported. What is
known already is not run again, so that a long benchmark may be stopped and goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"


def import_vllm() -> None:
    """What takes long to import, once for all processes."""
    from kvtrail.connector.simulate.tiny_model import prepare_environment

    prepare_environment()

    import kvtrail.connector.simulate.check.session  # noqa: F401


def run(function: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What the function returns in a process of its own; that it died, if it did."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(function, there))
    process.start()
    there.close()
    try:
        answer: dict[str, Any] = here.recv()
    except EOFError:
        answer = {"died": True}
    process.join()
    return answer


def _answer(function: Callable[[], Mapping[str, Any]], there: Connection) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())  # vLLM's warnings
    there.send(dict(function()))


class Known:
    """The answers so far, under their names, in a file below `.cache`."""

    def __init__(self, name: str) -> None:
        self._path = CACHE / name
        self._path.parent.mkdir(exist_ok=True)
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.answers: dict[str, dict[str, Any]] = {each["name"]: each for each in map(json.loads, lines)}

    def add(self, name: str, answer: Mapping[str, Any]) -> None:
        self.answers[name] = {"name": name, **answer}
        with self._path.open("a") as file:
            file.write(json.dumps(self.answers[name]) + "\n")


def checked(connector: str, steps: int, profiles: Sequence[str] | None = None, seed: int = 0) -> dict[str, Any]:
    """What `kvtrail check` finds first, of a connector in this process: the failure's id and text, or neither; and the steps
    that it took; and why nothing found proves nothing."""
    from kvtrail.connector.simulate.check.session import check
    from kvtrail.connector.simulate.run import Unbuildable

    try:
        result = check(connector, steps=steps, profiles=profiles, seed=seed, shrink_tries=0, stop_at_first=True)
    except Unbuildable as refused:  # it cannot even be made, or runs nothing
        return {"found": f"it cannot be made: {refused}"[:200], "text": "", "steps": 0, "profile": ""}
    found = result.found[0] if result.found else None
    return {
        "found": found and found.failure.id,
        "text": "" if found is None else found.failure.text,
        "profile": "" if found is None else found.profile,
        "steps": result.steps.total(),
        "hits": result.hits,
        "inconclusive": [] if found else result.inconclusive,
    }
