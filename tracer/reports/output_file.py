"""A command's output: a file that appears only when it is complete, or the standard output."""

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
    """Refuse to overwrite an input file, or, without `force`, any existing file.

    Raises:
        click.UsageError: with the file's name and the reason.
    """
    if output == STDOUT or not os.path.lexists(output):
        return
    if output.exists() and any(source.exists() and output.samefile(source) for source in sources):
        raise click.UsageError(f"{output} is one of the files to read")
    if not force:
        raise click.UsageError(f"{output} already exists; --force overwrites it")


@contextmanager
def or_exit(output: Path | None, *refusals: type[Exception], doing: str = "") -> Iterator[None]:
    """A context for reading and writing: prints why a file cannot be used, and ends the command with exit code 2.

    Args:
        output: the file named in errors of the operating system.
        refusals: exceptions, besides `UnusableTrace`, whose text says what cannot be used.
        doing: the name of the operation, such as "the replay". With it, internal errors also exit with code 2, since exit
            code 1 would mean drift.

    Raises:
        click.exceptions.Exit: with code 2, after the error was printed.
    """
    try:
        yield
        return
    except (UnusableTrace, *refusals) as error:  # type: ignore[misc]
        reason = str(error)
    except (BrokenPipeError, click.ClickException, click.exceptions.Exit):
        raise  # click handles these
    except Exception as error:
        if isinstance(error, OSError) and output is not None:
            reason = f"{output}: {error.strerror or error}"
        elif doing:
            reason = f"{doing} failed: {type(error).__name__}: {error}"
        else:
            raise
    click.echo(f"Error: {reason}", err=True)
    raise click.exceptions.Exit(2)


@contextmanager
def opened(output: Path) -> Iterator[IO[str]]:
    """The file to write to. It appears under its name only when it is complete, even if writing is interrupted."""
    if output == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)  # left by a killed process, or a link to another user's file
        with unfinished.open("x", encoding="utf-8") as file:
            yield file
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
