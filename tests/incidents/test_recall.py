"""The page that says what the rules find says what they find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_recall_is_up_to_date() -> None:
    run = subprocess.run([sys.executable, "benchmarks/recall.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "recall.md").read_text() == run.stdout
