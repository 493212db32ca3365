"""The conformance matrix: each connector that can be made on a CPU, with each vLLM, and with each LMCache.

    make conformance                                        the cells that have no report yet: hours on two cores
    make conformance ARGS="--again --row OffloadConnector"  these once more
    make conformance ARGS="--page"                          only the pages, from the reports that are there

Each cell is `kvtrail conformance` in a process and an environment of its own, with a limit in steps. Its report is a file
under `docs/conformance/reports`; the pages are made from these files, so a run may be ended and continued at any time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conformance_pages
import matrix
from connectors import LMCACHES, ROWS, VLLMS, WITH_VLLM, Row
from real_lmcache import DEPENDENCIES, INSTALLED, fetch

REPORTS = conformance_pages.REPORTS
STEPS = 6_000
"""Scheduling steps of a cell: most connectors reach each requirement that they ever reach."""
CELL_S = 900
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
    def path(self) -> Path:
        return REPORTS / self.column / f"{self.row.id}.json"

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


def reported(cell: Cell, folder: Path, steps: int) -> dict[str, Any]:
    """The report of a cell; where there is none, why."""
    path = [str(matrix.ROOT / "src")]
    if cell.lmcache is not None:
        path += _lmcache(cell.lmcache)
    command = ["-m", "kvtrail", "conformance", cell.row.connector, "--steps", str(steps)]
    if cell.row.config is not None:
        command += ["--config", json.dumps(cell.row.config)]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [matrix.environment(cell.vllm, folder), *command, "--out", home],
            capture_output=True,
            text=True,
            timeout=CELL_S,
            check=False,
            cwd=home,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(path), "VLLM_LOGGING_LEVEL": "CRITICAL", "LMCACHE_LOG_LEVEL": "CRITICAL"}
            | {"LMCACHE_TRACK_USAGE": "false"}
            | dict(cell.row.environment),
        )
        written = Path(home) / "report.json"
        if done.returncode in BUILT and written.exists():  # Python's own exit code after an exception is 1, too
            report: dict[str, Any] = json.loads(written.read_text("utf-8"))
            return report
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    return {"refused": lines[-1].removeprefix("Error: ").replace(home, "")[:300]}


def _lmcache(version: str) -> list[str]:
    """The folders of this LMCache and of what it imports; they are fetched once.

    Raises:
        OSError: pip cannot get it.
    """
    for name, pins in ((f"lmcache-{version}", (f"lmcache=={version}",)), ("dependencies", DEPENDENCIES)):
        if failed := fetch(name, pins):
            raise OSError(f"pip cannot get {' '.join(pins)}: {failed}")
    return [str(INSTALLED / f"lmcache-{version}"), str(INSTALLED / "dependencies")]


def made(cell: Cell, folder: Path, steps: int) -> str:
    """Make a cell's report and write it; returns its verdict."""
    try:
        report = reported(cell, folder, steps)
    except subprocess.TimeoutExpired:
        report = {"refused": f"it had not ended after {CELL_S} s"}
    except (subprocess.SubprocessError, OSError, json.JSONDecodeError) as error:
        return f"not tried: {type(error).__name__}: {error}"
    report |= {"made": datetime.datetime.now(datetime.UTC).date().isoformat(), "lmcache": cell.lmcache}
    if "refused" in report:
        report |= {"vllm": cell.vllm}
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    cell.path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(report.get("verdict") or f"refused: {report['refused']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="only this connector; may be repeated")
    parser.add_argument("--column", action="append", help="only vllm-VERSION or lmcache-VERSION; may be repeated")
    parser.add_argument("--again", action="store_true", help="also cells that have a report")
    parser.add_argument("--page", action="store_true", help="run nothing, only write the pages")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each cell (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; each needs 2 GB of memory (default: 1)")
    parser.add_argument("--folder", type=Path, default=matrix.ROOT / ".cache" / "versions", help="for the environments")
    arguments = parser.parse_args()
    chosen = [
        cell
        for cell in cells()
        if (not arguments.row or cell.row.id in arguments.row)
        and (not arguments.column or cell.column in arguments.column)
        and (arguments.again or not cell.path.exists())
    ]
    if not arguments.page:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            running = {pool.submit(made, cell, arguments.folder.resolve(), arguments.steps): cell for cell in chosen}
            try:
                for number, done in enumerate(as_completed(running), start=1):
                    print(f"{number} of {len(chosen)}: {running[done]}: {done.result()}", file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                print("Ended; what has a report is not run again.", file=sys.stderr)
    conformance_pages.write()


if __name__ == "__main__":
    main()
