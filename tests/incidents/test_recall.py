"""The page that says what the rules find says what they find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_recall_is_up_to_date() -> None:
    run = subprocess.run([sys.executable, "benchmarks/recall.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "recall.md").read_text() == run.stdout


def test_the_page_of_rules_says_which_rule_has_which_proof() -> None:
    code = "import recall; print(recall.rules_page(), end='')"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "rules.md").read_text() == run.stdout
    proofs = run.stdout.partition("## Proofs")[2]
    rows = [line.split(" | ") for line in proofs.splitlines() if line.startswith("| `")]
    assert rows
    for rule, fault, incidents, alike in rows:
        assert fault != "none", f"{rule}: no fault"
        assert "https://" in incidents, f"{rule}: no incident"
        assert int(alike.strip(" |")) >= 2, f"{rule}: too few look-alikes"
