"""What the terminal says of an engine that dies, as a person reads it: the demo, the audit and the replay of its trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from demos import children_left
from processes import free_port, until
from terminals import SIZES, Terminal

COLUMNS, ROWS = SIZES[0]
ASSERTION = "AssertionError: Mismatch in tokens to load"
WHY = "Why: stale-lookup: A cached lookup answer was handed out without regard"


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A demo in a terminal, as it stands after its engine has died of the bug; it is ended by Ctrl-C."""
    folder = tmp_path_factory.mktemp("demo")
    ports = [part for name in ("grpc", "http", "dashboard") for part in (f"--{name}-port", free_port())]
    demo = Terminal(
        "demo", "--bug", "stale-lookup", "--trace-file", "trace.jsonl", *ports,
        columns=COLUMNS, rows=ROWS, folder=folder,
    )  # fmt: skip
    try:
        demo.until(WHY)
        yield demo
    finally:
        demo.kill()
        until(lambda: children_left(folder) == [], why=lambda: children_left(folder))


@pytest.fixture(scope="module")
def trace(died: Terminal) -> Path:
    """The trace file of the demo, once the engine's goodbye is in it."""
    path = died.folder / "trace.jsonl"
    until(lambda: "kvtrail.recorder.ended_by" in path.read_text(), why=lambda: path.read_text()[-2000:])
    return path


def test_the_demo_tells_last_what_died_and_why(died: Terminal) -> None:
    """Fault 3: in the last three lines, which fit the terminal; and nothing is `served` where all was lost."""
    until_ctrl_c, what, why = died.last[-3:]
    assert until_ctrl_c == "The dashboard stays until Ctrl-C."
    assert re.match(rf"The engine died, [1-8] requests? lost: {ASSERTION}", what), what
    assert why.startswith(WHY), why
    said = re.sub(r"\x1b\[[0-9;]*m", "", died.raw)
    assert "requests served" not in said
    assert "  It could: crash. It did: engine died." in said
    assert max(len(line) for line in said.splitlines()[-16:]) <= COLUMNS


def test_after_ctrl_c_the_last_three_lines_still_tell_it(died: Terminal, trace: Path) -> None:
    assert trace.exists()
    died.type("\x03")
    assert died.end() == 0
    what, why, ended = died.last[-3:]
    assert what.startswith("The engine died")
    assert why.startswith("Why: ")
    assert ended == "Ended; nothing is left running."


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_audit_begins_with_the_assertion(trace: Path, columns: int, rows: int) -> None:
    """Fault 6, too: what the finding could do and what it did are two things."""
    audit = Terminal("audit", trace, columns=columns, rows=500)
    assert audit.end() == 1
    text = " ".join(audit.text.split())
    assert re.match(rf"Engine .* died at .* UTC of {ASSERTION}: .* Lost: [1-8] requests?: r1p1-bug-0\d", text), text
    assert re.search(r"Why: A cached .* \(stale-lookup of request r1p1-bug-0\S+\) stale-lookup \[could", text), text
    assert "stale-lookup [could: crash]" in text
    assert "; did: engine died Let L1 =" in text
    assert max(map(len, audit.screen)) <= columns


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_replay_goes_from_the_death_back_to_its_cause(trace: Path, columns: int, rows: int) -> None:
    """Fault 11, on the trace of a real engine: the first key counts, the whole height is used, and the answer can be read."""
    replay = Terminal("replay", trace, columns=columns, rows=rows)
    try:
        replay.type("f")
        cause = re.compile(r"^>\s*\d+! .*lookup: answered 256, cached", re.MULTILINE)
        replay.until(cause, "stale-lookup [could: crash]")
        replay.until_last_line("n next")
        assert sum(bool(line) for line in replay.screen) >= rows - 3
        replay.type("q")
        assert replay.end() == 1
    finally:
        replay.kill()
