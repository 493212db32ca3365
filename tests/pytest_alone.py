"""A test file that was written, run by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import forks


def run_pytest(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it in its own folder, with the kvtrail that is installed here."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", path.name]
    return forks.run(command, environment=os.environ | environment, folder=path.parent)
