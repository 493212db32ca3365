"""The conformance matrix: each connector that can be made on a CPU, with each vLLM, and with each LMCache.

    make conformance                                        the cells that have no report yet: hours on two cores
    make conformance ARGS="--again --row OffloadConnector"  these once more
    make conformance ARGS="--page"                          only the pages, from the reports that are there

Each cell is `kvtrail conformance` in a process of its own; those with one vLLM and one LMCache are
children of one process, which has imported vLLM. A cell's report is a line of its vLLM's file under
`docs/conformance/reports`; the pages are made from these files, so a run may be ended and continued at any time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

import conformance_pages
import matrix
from connectors import LMCACHES, ROWS, VLLMS, WITH_VLLM, Row
from real_lmcache import DEPENDENCIES, INSTALLED, fetch

CELL_S = 1800
_WRITES = threading.Lock()
"""Held while a file of reports is read and written."""
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "CRITICAL", "LMCACHE_LOG_LEVEL": "CRITICAL", "LMCACHE_TRACK_USAGE": "false"}
BUILT = (0, 1, 3)
"""Exit codes of `kvtrail conformance` with a report: passed, failed, inconclusive."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A connector with one version of vLLM, and of LMCache where it needs it."""

    row: Row
    vllm: str
    lmcache: str | None

    @property
    def column(self) -> str:
        return f"vllm-{self.vllm}" if self.lmcache in (None, LMCACHES[-1]) else f"lmcache-{self.lmcache}"

    @property
    def name(self) -> str:
        return conformance_pages.name(self.row.id, self.lmcache)

    def __str__(self) -> str:
        return f"{self.row.id} with vLLM {self.vllm}" + (f" and LMCache {self.lmcache}" if self.lmcache else "")


def cells() -> Iterator[Cell]:
    for vllm in reversed(VLLMS):
        for row in ROWS:
            yield Cell(row, vllm, LMCACHES[-1] if row.of_lmcache else None)
    for lmcache in reversed(LMCACHES[:-1]):
        for row in ROWS:
            if row.of_lmcache:
                yield Cell(row, WITH_VLLM, lmcache)


class Prepared:
    """A process of one environment, which has imported vLLM, and in which the cells' commands run one after another."""

    def __init__(self, vllm: str, lmcache: str | None, folder: Path) -> None:
        """
        Raises:
            OSError: pip cannot get the LMCache.
            subprocess.SubprocessError: or the vLLM.
        """
        path = [str(matrix.ROOT / "src"), *(_lmcache(lmcache) if lmcache else ())]
        self._process = subprocess.Popen(
            [matrix.environment(vllm, folder), Path(__file__).with_name("prepared.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path)},
        )

    def reported(self, cell: Cell, steps: int | None) -> dict[str, Any]:
        """The report of a cell; where there is none, why."""
        arguments = ["conformance", cell.row.connector, "--level", cell.row.level, "--out", "."]
        if steps is not None:
            arguments += ["--steps", str(steps)]
        if cell.row.config is not None:
            arguments += ["--config", json.dumps(cell.row.config)]
        with tempfile.TemporaryDirectory() as home:
            known = Path(home) / "known.json"
            known.write_text(json.dumps({"failures": _known(cell)}), "utf-8")
            arguments += ["--known", str(known)]
            asked = {
                "arguments": arguments,
                "environment": dict(cell.row.environment),
                "folder": home,
                "limit_s": CELL_S,
            }
            code = self._asked(asked)
            if code is None:
                return {"refused": f"it had not ended after {CELL_S} s"}
            written = Path(home) / "report.json"
            if code in BUILT and written.exists():  # Python's own exit code after an exception is 1, too
                return conformance_pages.in_short(json.loads(written.read_text("utf-8")))
            said = (Path(home) / "stderr").read_text("utf-8", "replace")
        lines = [line for line in said.strip().splitlines() if line.strip()] or [f"exit code {code}"]
        said = lines[-1].removeprefix("Error: ")
        for folder in (home, INSTALLED, matrix.ROOT):  # a report is the same on each machine
            said = said.replace(f"{folder}{os.sep}", "")
        return {"refused": said[:300]}

    def _asked(self, command: dict[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise OSError(f"vLLM cannot be imported there: exit code {self._process.wait()}")
        code: int | None = json.loads(answer)["code"]
        return code

    def close(self) -> None:
        """Its input ends, and so does the process."""
        self._process.communicate()


def _known(cell: Cell) -> list[dict[str, Any]]:
    """The failures of this row with other versions, and then those of other rows with this one: the same failure looks the
    same."""
    reports = [
        (version != cell.vllm, each)
        for version in VLLMS
        for name, each in conformance_pages.read(version).items()
        if version == cell.vllm or name.split(" ")[0] == cell.row.id
    ]
    return [failure for _, each in sorted(reports, key=lambda of: not of[0]) for failure in each.get("failures", ())]


def _lmcache(version: str) -> list[str]:
    """The folders of this LMCache and of what it imports; they are fetched once.

    Raises:
        OSError: pip cannot get it.
    """
    for name, pins in ((f"lmcache-{version}", (f"lmcache=={version}",)), ("dependencies", DEPENDENCIES)):
        if failed := fetch(name, pins):
            raise OSError(f"pip cannot get {' '.join(pins)}: {failed}")
    return [str(INSTALLED / f"lmcache-{version}"), str(INSTALLED / "dependencies")]


def made(same: Iterable[Cell], folder: Path, steps: int | None, on_verdict: Callable[[Cell, str], None]) -> None:
    """Make the reports of cells of one environment, and write them; `on_verdict` is called with the verdict of each."""
    with ExitStack() as stack:
        prepared: Prepared | None = None
        for cell in same:
            try:
                if prepared is None:
                    prepared = stack.enter_context(closing(Prepared(cell.vllm, cell.lmcache, folder)))
                report = prepared.reported(cell, steps)
            except (subprocess.SubprocessError, OSError, json.JSONDecodeError) as error:
                on_verdict(cell, f"not tried: {type(error).__name__}: {error}")
                continue
            made_on = {"made": datetime.datetime.now(datetime.UTC).date().isoformat(), "lmcache": cell.lmcache}
            with _WRITES:
                conformance_pages.save(cell.vllm, {**conformance_pages.read(cell.vllm), cell.name: made_on | report})
            on_verdict(cell, str(report.get("verdict") or f"refused: {report['refused']}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="only this connector; may be repeated")
    parser.add_argument("--column", action="append", help="only vllm-VERSION or lmcache-VERSION; may be repeated")
    parser.add_argument("--again", action="store_true", help="also cells that have a report")
    parser.add_argument("--page", action="store_true", help="run nothing, only write the pages")
    parser.add_argument("--steps", type=int, help="of each cell (default: those of its level)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; each needs 2 GB of memory (default: 1)")
    parser.add_argument("--folder", type=Path, default=matrix.ROOT / ".cache" / "versions", help="for the environments")
    arguments = parser.parse_args()
    chosen = [
        cell
        for cell in cells()
        if (not arguments.row or cell.row.id in arguments.row)
        and (not arguments.column or cell.column in arguments.column)
        and (arguments.again or cell.name not in conformance_pages.read(cell.vllm))
    ]
    if not arguments.page:
        numbers = count(1)

        def on_verdict(cell: Cell, verdict: str) -> None:
            print(f"{next(numbers)} of {len(chosen)}: {cell}: {verdict}", file=sys.stderr, flush=True)

        jobs = [list(same) for _, same in groupby(chosen, lambda cell: (cell.vllm, cell.lmcache))]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            running = [
                pool.submit(made, same, arguments.folder.resolve(), arguments.steps, on_verdict) for same in jobs
            ]
            try:
                for done in as_completed(running):
                    done.result()
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                print("Ended; what has a report is not run again.", file=sys.stderr)
    conformance_pages.write()


if __name__ == "__main__":
    main()
