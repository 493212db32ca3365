"""The demo's children end when a signal comes, whatever is being done at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SLOW_S

from kvtrail.connector.demo.children import ChildDied, Children

PARENT = """
import os, signal, sys, time
from pathlib import Path
from kvtrail.connector.demo import children as room

room.PATIENCE_S = 0.5
with room.Children() as children:
    children.stop_at(signal.SIGINT)
    child = children.start("child", ["-c", sys.argv[1]], log=Path("log"), env=os.environ)
    while not Path("log").read_text():
        time.sleep(0.01)
    exec("os.kill(os.getpid(), signal.SIGINT)")  # as a dataclass, or a named tuple, is made in an import
    while child.process.poll() is None:
        time.sleep(0.01)
print("ended", children.stopped)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.mark.parametrize("before", ["", STUBBORN], ids=["willing", "stubborn"])
def test_a_signal_ends_them_wherever_it_comes(tmp_path: Path, before: str) -> None:
    child = f"{before}print('ready', flush=True); import time; time.sleep({SLOW_S})"
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, child], cwd=tmp_path, capture_output=True, text=True, timeout=SLOW_S, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended True\n", "")


def test_none_is_started_after_a_signal(tmp_path: Path) -> None:
    children = Children()
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)]
    try:
        children.stop_at(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        with children, pytest.raises(ChildDied, match="the child was stopped"):
            children.start("child", ["-c", ""], log=tmp_path / "log", env=os.environ)
    finally:
        for number, handler in zip((signal.SIGUSR1, signal.SIGALRM), handlers, strict=True):
            signal.signal(number, handler)
    assert list(tmp_path.iterdir()) == []
