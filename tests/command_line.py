"""Commands as a person calls them, and trace files to call them with."""

from __future__ import annotations

import random
from pathlib import Path

from click.testing import CliRunner, Result
from history import goodbyes, history
from wire import encoded, to_json_line

from kvtrail.__main__ import main

OK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"
DRIFT = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nend"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def exported(store: Path, trace: Path) -> Path:
    """A trace file of what a sidecar has stored, which may still run."""
    result = run("audit", "--store", str(store), "--export", str(trace), "--force")
    assert result.exit_code == 0, result.output
    return trace


def write(path: Path, *texts: str, a_line_each: bool = False, goodbye: bool = True) -> Path:
    """A trace file of these histories, each of a recorder of its own."""
    lines = []
    for number, text in enumerate(texts):
        events = history(text, request=f"r-{number}-0123abcd", recorder=f"rec-{number}")
        events += goodbyes(events) if goodbye else []
        batches = [[e] for e in events] if a_line_each else [events]
        lines += [to_json_line(encoded(batch)) for batch in batches]
    random.Random(0).shuffle(lines)
    path.write_text("\n".join(lines) + "\n")
    return path
