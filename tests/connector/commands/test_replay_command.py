"""`kvtrail replay` as a script calls it, and as a person meets it on a real terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import command_line
import pytest
from click.testing import Result
from history import history
from processes import until
from terminals import Terminal
from wire import encoded, to_json_line

RECORDED = Path(__file__).parents[2] / "golden/preempted.jsonl"
DRIFT = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nb: L 64 c0 h0 -> 0\nL 749 c336 h256 -> 256 cached\nA 256\nend"
OK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"


def run(*arguments: object) -> Result:
    return command_line.run("replay", *map(str, arguments))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.jsonl", DRIFT)


def write(path: Path, text: str) -> Path:
    path.write_text(to_json_line(encoded(history(text))) + "\n")
    return path


def test_drift_is_shown_where_it_happens(trace: Path) -> None:
    result = run(trace)
    assert result.exit_code == 1
    step, finding = result.output.index(" 8  01:24:36.007"), result.output.index("stale-lookup [could: crash]")
    assert step < finding < result.output.index(" 9  01:24:36.008")


def test_without_drift_the_exit_code_is_0(tmp_path: Path) -> None:
    result = run(write(tmp_path / "t.jsonl", OK))
    assert (result.exit_code, result.output.count("\n")) == (0, 9)


def test_the_exit_code_is_that_of_what_is_shown(trace: Path) -> None:
    assert run(trace, "--request", "b-cmpl-1-0").exit_code == 0


def test_options_can_be_set_in_the_environment(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_REPLAY_REQUEST", "b-cmpl-1-0")
    assert re.findall(r"^ *(\d+)  \d\d:", run(trace).output, flags=re.MULTILINE) == ["6", "7"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "x"], "there is no request 'x'; there are 2 requests: cmpl-1-0, b-cmpl-1-0"),
        (["--json"], "--config, --recorder, --output and --json go with --against"),
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
    monkeypatch.setattr("kvtrail.tracer.reports.steps.lines", lambda *_, **__: 1 / 0)
    result = run(trace)
    assert result.exit_code == 2
    assert "the replay failed: ZeroDivisionError" in result.output


def test_a_damaged_line_is_reported_and_not_fatal(trace: Path) -> None:
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


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    """Opens a terminal with `kvtrail replay` in it."""
    with ExitStack() as opened:

        def terminal(*arguments: object, **looks: Any) -> Terminal:
            made = Terminal("replay", *arguments, **looks)
            opened.callback(made.kill)
            return made

        yield terminal


Open = Callable[..., Terminal]


def test_ctrl_c_while_it_reads_ends_it(tmp_path: Path, open_terminal: Open) -> None:
    """A named pipe without a writer is a file that never ends."""
    endless = tmp_path / "endless.jsonl"
    os.mkfifo(endless)
    terminal = open_terminal(endless)
    with ExitStack() as held:

        def is_read() -> bool:
            with suppress(OSError):  # no process has it open
                held.callback(os.close, os.open(endless, os.O_WRONLY | os.O_NONBLOCK))
                return True
            return False

        until(is_read, why=lambda: terminal.raw)
        until(terminal.sleeps, why=lambda: terminal.raw)
        terminal.type("\x03")
        assert terminal.end() == 130
    assert "Traceback" not in terminal.raw


@pytest.mark.parametrize(
    "command",
    [
        ("check", "OffloadConnector"),
        ("replay", "--against", "recorded", str(RECORDED)),
        ("minimize", str(RECORDED), "--pytest", "test_it.py"),
    ],
)
def test_without_vllm_nothing_is_judged_and_the_exit_code_says_so(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    result = command_line.run(*command)
    assert result.exit_code == 2, result.output
    assert re.search("install vLLM for your machine|install kvtrail where vLLM is installed", result.output)
