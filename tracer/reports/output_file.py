"""Where a command writes: a file that appears when it is whole, or the standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from kvtrail.tracer.ingest.trace_file import UnusableTrace

STDOUT = Path("-")


def check(output: Path, *, force: bool, sources: Iterable[Path]) -> None:
    """Refuse to write over what is read, and, without `force`, over what is there.

    Raises:
        click.UsageError: with the file's name and the reason.
    """
    if output == STDOUT or not output.exists():
        return
    if any(source.exists() and output.samefile(source) for source in sources):
        raise click.UsageError(f"{output} is one of the files to read")
    if not force:
        raise click.UsageError(f"{output} is there already; --force writes over it")


@contextmanager
def or_exit(output: Path | None) -> Iterator[None]:
    """Around reading and writing: a file that cannot be used is named with the reason, and the command ends.

    Raises:
        click.exceptions.Exit: with code 2, once it is told.
    """
    try:
        yield
    except UnusableTrace as error:
        reason = str(error)
    except BrokenPipeError:
        raise  # whoever read our output has seen enough; click knows what to do
    except OSError as error:
        reason = f"{output}: {error.strerror or error}"
    else:
        return
    click.echo(f"Error: {reason}", err=True)
    raise click.exceptions.Exit(2)


@contextmanager
def opened(output: Path) -> Iterator[IO[str]]:
    """The file to write to. It appears under its name when it is complete, whatever interrupts the writing."""
    if output == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
