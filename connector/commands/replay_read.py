"""`kvtrail replay` without more: read a history, and step through it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click

from kvtrail.tracer.replay.history import History, load
from kvtrail.tracer.replay.player import Player
from kvtrail.tracer.replay.selection import NotInHistory, moment, requests_named, through
from kvtrail.tracer.reports import json_lines, screen, terminal
from kvtrail.tracer.reports.console import Console

MANY = 20_000
"""Events from which on judging them is worth a progress bar."""
_LINES_AT_ONCE = 256


def step_through(
    traces: Sequence[Path], *, request: str | None, begin: str | None, end: str | None, plain: bool, as_json: bool
) -> int:
    """Show a history, as the options ask; returns the exit code.

    Raises:
        UnusableTrace, NotInHistory, NoSuchStep: with the name of what is wrong, and the reason.
    """
    with terminal.progress(traces) as on_bytes:
        history = load(traces, on_bytes=on_bytes)
    player = _player(history, request, begin, end)
    if as_json:
        _print(json_lines.lines(player))
    elif plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print(screen.lines(player, columns=terminal.width()))
    else:
        Console(player).run()
    return 1 if player.findings else 0


def _player(history: History, request: str | None, begin: str | None, end: str | None) -> Player:
    from_ns = None if begin is None else moment(history, begin)
    to_ns = None if end is None else through(moment(history, end))
    if from_ns is not None and to_ns is not None and to_ns < from_ns:
        raise NotInHistory(f"--to {end} is before --from {begin}")
    requests = None if request is None else requests_named(history, request)
    with _progress(len(history.moments)) as on_events:
        return Player(history, requests=requests, from_ns=from_ns, to_ns=to_ns, on_events=on_events)


def _print(lines: Iterable[str]) -> None:
    lines = iter(lines)
    while some := list(islice(lines, _LINES_AT_ONCE)):
        terminal.echo("\n".join(some))


@contextmanager
def _progress(events: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar, where somebody watches and waits."""
    if events < MANY or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=events, label="judging", file=sys.stderr) as bar:
        yield bar.update
