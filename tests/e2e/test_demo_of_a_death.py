"""The demo of a bug that kills its engine: what its last lines say, and what the commands say of its trace. After Ctrl-C its
last lines still say it (`story.py`)."""

from __future__ import annotations

import re
import subprocess
import sys

import httpx
import pytest
from processes import SLOW_S
from story import COLUMNS, WHY, DyingDemo
from terminals import Terminal

from kvtrail.tracer.model.words import without_epochs

pytest.importorskip("vllm", reason="the demo runs vLLM")
ASSERTION = "AssertionError: Mismatch in tokens to load"
MISMATCH = r"Mismatch in tokens to load: 256 vs 256 \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("


def test_the_bug_kills_the_engine_and_is_explained(dying_demo: DyingDemo) -> None:
    (finding,) = dying_demo.get("/api/findings")
    (failed,) = dying_demo.get("/api/requests", status="failed")
    raised = re.search(MISMATCH, " ".join(dying_demo.terminal.raw.split()))
    assert raised is not None, dying_demo.terminal.raw
    assert finding["rule"] == "stale-lookup"
    assert finding["numbers"]["matched"] == finding["numbers"]["returned"] == 256
    assert finding["numbers"]["computed"] == int(raised[1])
    assert failed["request"] == finding["request"]
    assert re.search(MISMATCH, failed["error"])
    found = r'kvtrail_findings_total{.*known="false",rule="stale-lookup",severity="crash"} 1.0'
    assert re.search(found, httpx.get(f"{dying_demo.api}/metrics", timeout=SLOW_S).text)
    assert httpx.get(f"{dying_demo.page}/_stcore/health", timeout=SLOW_S).is_success
    audit = [sys.executable, "-m", "kvtrail", "audit", str(dying_demo.trace)]
    result = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert without_epochs(finding["explanation"]) in result.stdout


def test_the_last_lines_say_what_died_and_why(dying_demo: DyingDemo) -> None:
    """In the last three lines, which fit the terminal; and nothing is `served` where all was lost."""
    until_ctrl_c, what, why = dying_demo.terminal.last[-3:]
    assert until_ctrl_c == "The dashboard stays until Ctrl-C."
    assert re.match(rf"The engine died, [1-8] requests? lost: {ASSERTION}", what), what
    assert why.startswith(WHY), why
    text = re.sub(r"\x1b\[[0-9;]*m", "", dying_demo.terminal.raw)
    assert "requests served" not in text
    assert "  It could: crash. It did: engine died." in text
    assert max(len(line) for line in text.splitlines()[-16:]) <= COLUMNS


@pytest.mark.parametrize("columns", [80, 200])
def test_the_audit_begins_with_the_assertion(dying_demo: DyingDemo, columns: int) -> None:
    """What the finding could do and what it did are two things."""
    audit = Terminal("audit", dying_demo.trace, columns=columns, rows=500)
    assert audit.end() == 1
    text = " ".join(audit.text.split())
    assert re.match(rf"Engine .* died at .* UTC of {ASSERTION}: .* Lost: [1-8] requests?: r1p1-bug-0\d", text), text
    assert re.search(r"Why: A cached .* \(stale-lookup of request r1p1-bug-0\S+\) stale-lookup \[could", text), text
    assert "stale-lookup [could: crash]" in text
    assert "; did: engine died Let L1 =" in text
    assert max(map(len, audit.screen)) <= columns


def test_the_replay_shows_the_cause_of_the_death(dying_demo: DyingDemo) -> None:
    replay = [sys.executable, "-m", "kvtrail", "replay", str(dying_demo.trace)]
    result = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "answered 256, cached" in result.stdout
    assert "stale-lookup [could: crash]" in result.stdout
