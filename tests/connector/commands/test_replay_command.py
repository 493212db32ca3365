"""`kvtrail replay` as a script calls it, and as a person meets it on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click import unstyle
from click.testing import CliRunner, Result
from history import history
from processes import SLOW_S, until
from wire import encoded

from kvtrail.__main__ import main
from kvtrail.tracer.ingest import otlp_json

DRIFT = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nb: L 64 c0 h0 -> 0\nL 749 c336 h256 -> 256 cached\nA 256\nend"
OK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.jsonl", DRIFT)


def write(path: Path, text: str) -> Path:
    path.write_text(otlp_json.to_json_line(encoded(history(text))) + "\n")
    return path


def test_drift_is_shown_where_it_happens(trace: Path) -> None:
    result = run(trace)
    assert result.exit_code == 1
    step, finding = result.output.index(" 8  01:24:36.007"), result.output.index("stale-lookup [crash]")
    assert step < finding < result.output.index(" 9  01:24:36.008")


def test_without_drift_the_exit_code_is_0(tmp_path: Path) -> None:
    result = run(write(tmp_path / "t.jsonl", OK))
    assert (result.exit_code, result.output.count("\n")) == (0, 9)


def test_the_exit_code_is_that_of_what_is_shown(trace: Path) -> None:
    assert run(trace, "--request", "b-cmpl").exit_code == 0
    assert run(trace, "--to", "+0.006").exit_code == 0
    assert run(trace, "--to", "01:24:36.007").exit_code == 1
    assert run(trace, "--from", "+0.008").exit_code == 0


def test_a_request_and_a_window_of_time(trace: Path) -> None:
    result = run(trace, "--request", "cmpl-1-0", "--from", "01:24:36.003", "--to", "+0.007")
    assert re.findall(r"^ *(\d+)  \d\d:", result.output, flags=re.MULTILINE) == ["4", "5", "8"]
    assert "3 steps of them are shown" in result.output
    # It ends at 01:24:36.009010, and is shown at 01:24:36.009.
    assert "10  01:24:36.009" in run(trace, "--to", "01:24:36.009").output


def test_json_is_an_object_a_line(trace: Path) -> None:
    result = run(trace, "--json")
    assert result.exit_code == 1
    records = [json.loads(line) for line in result.output.splitlines()]
    assert [line["type"] for line in records] == ["history", *["step"] * 10, "end"]


def test_options_can_be_set_in_the_environment(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JSON": "1", "FROM": "+0.003", "TO": "+0.003", "REQUEST": "cmpl"}.items():
        monkeypatch.setenv(f"KVTRAIL_REPLAY_{name}", value)
    records = [json.loads(line) for line in run(trace).output.splitlines()]
    assert [line["step"] for line in records if line["type"] == "step"] == [4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "x"], "there is no request 'x'; there are 2 requests: cmpl-1-0, b-cmpl-1-0"),
        (["--from", "soon"], "'soon' is no time"),
        (["--to", "+x"], "'+x' is no time"),
        (["--from", "+2", "--to", "+1"], "--to +1 is before --from +2"),
        (["--from", "+100"], "no step is left between these times"),
        (["--plain", "--json"], "--plain and --json exclude each other"),
    ],
)
def test_what_cannot_be_is_an_error(trace: Path, arguments: list[str], said: str) -> None:
    result = run(trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_an_unusable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    result = run(tmp_path / "absent.jsonl")
    assert result.exit_code == 2
    assert f"{tmp_path / 'absent.jsonl'}: No such file or directory" in result.output


def test_a_defect_of_ours_is_no_drift(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.reports.screen.lines", lambda *_, **__: 1 / 0)
    result = run(trace)
    assert result.exit_code == 2
    assert "the replay failed: ZeroDivisionError" in result.output


def test_a_damaged_line_is_told_and_not_fatal(trace: Path) -> None:
    trace.write_text(trace.read_text() + '{"resourceSpans":[{"reso')
    result = run(trace)
    assert result.exit_code == 1
    assert f"Not read: 1 line or span; the first: {trace}:2: " in result.output


def test_a_log_is_replayed_too(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "\n".join(
            f"(EngineCore_DP0 pid=501) [2026-03-04 10:11:12,{at}00] LMCache INFO: Reqid: cmpl-5a5a5a5a-0, Total tokens 10009,"
            f" LMCache hit tokens: {hit}, need to load: {need}, num_computed_tokens {computed} (file.py:1:lmcache.v1)"
            for at, hit, need, computed in ((1, 0, 0, 0), (3, 256, -80, 336))
        )
    )
    result = run(log)
    assert result.exit_code == 0, result.output
    assert "336 of 10,009 computed, 256 matched; answered 0" in result.output
    assert "1 event of cmpl-5a5a5a5a-0 missing here" in result.output


class Terminal:
    """A real terminal with `kvtrail replay` in it."""

    def __init__(self, *arguments: object, columns: int, rows: int = 24) -> None:
        self._ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-m", "kvtrail", "replay", *map(str, arguments)]
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=clean, start_new_session=True)
        os.close(its)
        self.output = ""

    def until(self, text: str) -> str:
        """Wait until the screen that is drawn now holds the text; returns that screen."""
        deadline = time.monotonic() + SLOW_S
        while text not in (screen := unstyle(self.output.rpartition("\x1b[2J\x1b[1;1H")[2])):
            assert select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0], self.output
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # how Linux says that the other side of a terminal is closed
                chunk = b""
            assert chunk, self.output
            self.output += chunk.decode().replace("\r\n", "\n")
        return screen

    def type(self, keys: str) -> None:
        """As soon as somebody reads: what is typed while the screen is drawn is thrown away, as `click.getchar` wants it."""
        until(lambda: not termios.tcgetattr(self._ours)[3] & termios.ICANON, why=lambda: self.output)
        os.write(self._ours, keys.encode())

    def hang_up(self) -> None:
        os.close(self._ours)

    def end(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


def test_on_a_terminal_keys_lead_to_the_finding(trace: Path) -> None:
    terminal = Terminal(trace, columns=100, rows=40)
    terminal.until("Press a key.")
    terminal.type(" ")
    terminal.until("Step 1 of 10")
    terminal.type("f")
    screen = terminal.until("stale-lookup [crash]")
    assert "Step 8 of 10" in screen
    assert "account after it" in screen
    terminal.type("q")
    assert terminal.end() == 1


@pytest.mark.parametrize("columns", [40, 72])
def test_a_narrow_terminal_is_not_overrun(trace: Path, columns: int) -> None:
    terminal = Terminal(trace, columns=columns, rows=16)
    terminal.until("Press a key.")
    terminal.type("\r")
    terminal.until("Step 1 of 10")
    terminal.type("f")
    screen = terminal.until("more lines: e shows all\n")
    assert max(map(len, screen.splitlines())) <= columns
    terminal.type("q")
    assert terminal.end() == 1


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(trace: Path) -> None:
    terminal = Terminal(trace, columns=80)
    terminal.until("Press a key.")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.output


def test_a_terminal_that_goes_away_ends_it(trace: Path) -> None:
    terminal = Terminal(trace, columns=80)
    terminal.until("Press a key.")
    terminal.hang_up()
    terminal.end()


def test_plain_output_on_a_terminal_asks_for_no_key(trace: Path) -> None:
    terminal = Terminal(trace, "--plain", columns=80)
    terminal.until("10  01:24:36.009")
    assert terminal.end() == 1


def test_who_waits_for_a_big_file_is_told(trace: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.jsonl"
    big.write_text(trace.read_text() + " " * (9 << 20) + "\n")
    terminal = Terminal("--plain", big, columns=80)
    assert "big.jsonl  [" in terminal.until("10  01:24:36.009")
    assert terminal.end() == 1
