"""A pytest plugin: kvtrail's wheel, built once for all tests of the process, from what a container's build sees."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder named kvtrail, as `git clone` makes it, with the files that `.dockerignore` lets through."""
    folder = tmp_path_factory.mktemp("parent") / "kvtrail"
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, copy = ROOT / line[1:], folder / line[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(source, copy)
    return folder


@pytest.fixture(scope="session")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the clone."""
    return built(clone, tmp_path_factory.mktemp("wheel"), "wheel")


def built(project: Path, folder: Path, kind: str) -> Path:
    """The `wheel` or the `sdist` of a project."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(project)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = folder.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return path
