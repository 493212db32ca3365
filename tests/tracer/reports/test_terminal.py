"""A long read shows its progress on a terminal, and nothing in a pipe."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtrail.tracer.history.history import load
from kvtrail.tracer.reports import terminal

TRACE = Path(__file__).parents[2] / "golden" / "stale-lookup.jsonl"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=shown))  # pytest puts its own stderr back
    monkeypatch.setattr(terminal, "LARGE", 1)
    return shown


def test_reading_large_files_shows_a_progress_bar(screen: Screen) -> None:
    with terminal.reading([TRACE, TRACE]):
        load([TRACE, TRACE])
    assert "reading" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_after_reading_nothing_is_reported(screen: Screen) -> None:
    with terminal.reading([TRACE]):
        pass
    before = screen.getvalue()
    load([TRACE])
    assert screen.getvalue() == before


def test_a_pipe_and_small_files_get_no_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.reading([TRACE]):
        load([TRACE])
    monkeypatch.setattr(terminal, "LARGE", 1)
    with terminal.reading([TRACE]):
        load([TRACE])
    assert capsys.readouterr().err == ""
