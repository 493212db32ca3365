"""A written test file, run by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUN_S = 120


def run_pytest(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it in its own folder, with the kvtrail that is installed here."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name],
        cwd=path.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
