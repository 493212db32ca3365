"""Output to a terminal: its size, colours, wrapped lines, and a line of progress. A pipe gets none of them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvtrail.tracer.ingest import files

STATUS_EVERY_S = 0.1
LARGE = 16 << 20
"""Bytes of files from which on reading them has a progress bar: seconds."""
NARROWEST = 40
"""The fewest columns to wrap to: sentences with two words a line help nobody."""


def width() -> int | None:
    """Columns of the terminal; None if the output is a pipe or a file, where lines stay whole."""
    return max(shutil.get_terminal_size().columns, NARROWEST) if sys.stdout.isatty() else None


def echo(text: str) -> None:
    """Print. Colours are removed unless the output is a terminal, or if NO_COLOR (https://no-color.org) is set."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def plain(text: str) -> str:
    """Untrusted text with its control characters escaped, so that a trace file cannot control the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def wrapped(text: str, columns: int | None, *, first: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `columns`, the first indented by `first`, the others by `rest`. Ids and addresses stay whole."""
    if columns is None or not text:
        return [(first + text).rstrip()]
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


@contextmanager
def reading(paths: Iterable[Path]) -> Iterator[None]:
    """On a terminal, a progress bar over the bytes of large files that are read within it."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size < LARGE or not sys.stderr.isatty():
        yield
        return
    with click.progressbar(length=size, label="reading", file=sys.stderr) as bar, files.watched(bar.update):
        yield


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A line about the progress, on a terminal; call the result with its new text as often as you like."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    shown_s = 0.0

    def say(text: str) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= STATUS_EVERY_S:
            shown_s = time.monotonic()
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    try:
        yield say
    finally:
        click.echo("\r\x1b[K", nl=False, err=True)
