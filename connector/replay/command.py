"""`kvtrail replay`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click

from tracer import terminal, words
from tracer.replay import machine, screen
from tracer.replay.console import Console
from tracer.replay.history import History, load
from tracer.replay.player import NoSuchStep, Player
from tracer.replay.selection import NotInHistory, moment, requests_named, through
from tracer.tracefile import UnusableTrace

MANY = 20_000
"""Events from which on judging them is worth a progress bar."""
BIG = 8 << 20
"""Bytes from which on reading them is worth a word."""
_LINES_AT_ONCE = 256


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option(
    "--request", metavar="ID", help="Show this request only: its id, the external one, or the beginning of either."
)
@click.option(
    "--from",
    "begin",
    envvar="KVTRAIL_REPLAY_FROM",
    metavar="TIME",
    help="Show the steps from this time on (UTC), or from +SECONDS on.",
)
@click.option(
    "--to",
    "end",
    envvar="KVTRAIL_REPLAY_TO",
    metavar="TIME",
    help="Show the steps up to this time (UTC), or up to +SECONDS.",
)
@click.option(
    "--plain", is_flag=True, help="Print every step as a line, also on a terminal; in a pipe that is so anyway."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="KVTRAIL_REPLAY_JSON",
    help="Print every step as a line of JSON, for machines.",
)
@click.pass_context
def replay(
    context: click.Context,
    traces: tuple[Path, ...],
    request: str | None,
    begin: str | None,
    end: str | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Step through trace files, read together as one history: each event, and the account of its request beside it.

    A TRACE may also be the log of a vLLM server with LMCache. On a terminal single keys move through it, and ? tells which;
    elsewhere every step is a line. Findings stand where they are made.

    Exit code 0: no drift in what is shown; 1: drift; 2: a file cannot be used, or there is nothing to show.

    Example: kvtrail replay trace.jsonl

    Example: kvtrail replay trace.jsonl --request chatcmpl-7 --from 14:59:37 --plain
    """
    if plain and as_json:
        raise click.UsageError("--plain and --json exclude each other")
    try:
        _tell_what_is_read(traces)
        player = _player(load(traces), request, begin, end)
        if as_json:
            _print(machine.lines(player))
        elif plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print(screen.lines(player, columns=terminal.width()))
        else:
            Console(player).run()
    except KeyboardInterrupt:
        context.exit(130)
    except (UnusableTrace, NotInHistory, NoSuchStep) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(2)
    except BrokenPipeError:
        raise  # whoever read our output has seen enough; click knows what to do
    except Exception as error:  # a defect of ours: exit code 1 would say that there is drift
        click.echo(f"Error: the replay failed: {type(error).__name__}: {error}", err=True)
        context.exit(2)
    context.exit(1 if player.findings else 0)


def _player(history: History, request: str | None, begin: str | None, end: str | None) -> Player:
    from_ns = None if begin is None else moment(history, begin)
    to_ns = None if end is None else through(moment(history, end))
    if from_ns is not None and to_ns is not None and to_ns < from_ns:
        raise NotInHistory(f"--to {end} is before --from {begin}")
    requests = None if request is None else requests_named(history, request)
    with _progress(len(history.moments)) as on_events:
        return Player(history, requests=requests, from_ns=from_ns, to_ns=to_ns, on_events=on_events)


def _tell_what_is_read(traces: Iterable[Path]) -> None:
    """Reading is most of the waiting: say so to whoever waits."""
    size = sum(path.stat().st_size for path in traces if path.is_file())
    if size >= BIG and sys.stderr.isatty():
        click.echo(f"Reading {words.size(size)} ...", err=True)


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
