"""Functions shared by the commands that run a session of `check`: progress, signals, and exit."""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrail.tracer.model.words import some
from kvtrail.tracer.reports import output_file, terminal

if TYPE_CHECKING:
    from types import FrameType

    from kvtrail.connector.simulate.check.session import Checked

OnProgress = Callable[["Checked", str], None]


@contextmanager
def runnable(context: click.Context, connector: str) -> Iterator[None]:
    """End with exit code 2 where the connector cannot be run."""
    from kvtrail.connector.simulate.check.session import NothingRecorded
    from kvtrail.connector.simulate.run import Unbuildable

    try:
        yield
    except (NothingRecorded, Unbuildable) as error:
        click.echo(f"Error: {connector} cannot be run: {error}", err=True)
        context.exit(2)


@contextmanager
def own_folder(wanted: Path) -> Iterator[Path]:
    """The folder for what a session writes: this one or, if an earlier session has written to it, the first without a report
    of `NAME-2`, `NAME-3` and so on. Writing is tried before the session, which takes minutes. An empty folder is removed."""
    from kvtrail.connector.simulate.check.report import NAME

    folder, number = wanted, 1
    while (folder / NAME).exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    with output_file.or_exit(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    try:
        yield folder
    finally:
        with suppress(OSError):  # something was written
            folder.rmdir()


def watched(session: Callable[[OnProgress], Checked], *, steps: int | None) -> tuple[Checked, int]:
    """Run a session of `steps` steps, with its progress in the terminal.

    Returns:
        The results, and the signal that ended the session early, or 0.

    Raises:
        KeyboardInterrupt: a signal came before anything was seen.
    """
    latest: list[Checked] = []
    came: list[int] = []
    of = "" if steps is None else f" of {steps:,}"
    try:
        with _interrupts() as came, terminal.status() as say, _vllm_silent():

            def on_progress(checked: Checked, doing: str) -> None:
                latest[:] = [checked]
                if came:
                    raise KeyboardInterrupt
                failures = some(len(checked.found), "failure")
                say(f"{checked.seconds:.0f} s, {checked.steps.total():,}{of} steps, {failures}; {doing}")

            return session(on_progress), 0
    except KeyboardInterrupt:
        if not latest:
            raise
        return latest[0], came[0] if came else signal.SIGINT


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The received signals: Ctrl-C, or SIGTERM from a job's time limit. Each also raises KeyboardInterrupt, which is lost if
    Python is in an internal callback, such as a weak reference's."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _vllm_silent() -> Iterator[None]:
    """A context without vLLM's log, whose messages about provoked failures would precede the result."""
    before = logging.root.manager.disable
    # A level of vLLM's logger would not last: vLLM sets it when it is imported, which may be later.
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def end(context: click.Context, written: Sequence[Path], *, interrupted: int, code: int) -> None:
    """Name the files that were written, and end: after a signal with 128 and its number, otherwise with the code."""
    click.echo(f"\nWritten: {', '.join(map(str, written))}", err=True)
    if interrupted:
        click.echo("Interrupted; this is what was seen until then.", err=True)
    context.exit(128 + interrupted if interrupted else code)
