"""Output to a terminal: its size, colours, wrapped lines, and a progress line. A pipe gets none of these."""

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
"""Size of files in bytes from which reading has a progress bar, since it takes seconds."""
NARROWEST = 40
"""Minimum width for wrapping, in columns."""


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
    """A progress line on a terminal; call the result with each new text."""
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
