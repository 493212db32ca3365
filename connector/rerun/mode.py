"""`kvtrail replay --against`: run a recording again against a connector, and say what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from connector.drive.needs import vllm_ready
from tracer import terminal
from tracer.replay.history import load

PROGRESS_EVERY = 200
"""Calls after which the progress bar is drawn anew."""


def run_against(
    traces: Sequence[Path],
    *,
    against: str,
    config: Mapping[str, Any] | None = None,
    request: str | None = None,
    as_json: bool = False,
) -> int:
    """Print what came of it; returns the exit code: 0 for the same answers or only fixes, 1 for any other difference.

    Raises:
        UnusableTrace, Unusable: with what is wrong, and the reason.
    """
    vllm_ready("kvtrail replay --against")
    from connector.rerun.calls import Unusable
    from connector.rerun.outcome import Outcome
    from connector.rerun.report import report
    from connector.rerun.rerun import rerun

    with terminal.progress(traces) as on_bytes:
        history = load(traces, on_bytes=on_bytes)
    with _progress() as progress:
        result = rerun(history, against=against, config=config, request=request, progress=progress)
    terminal.echo(json.dumps(result.as_dict(), indent=2) if as_json else report(result, columns=terminal.width()))
    for file, line, reason in history.unreadable:
        click.echo(f"{file}:{line}: not read: {reason}", err=True)
    if not (result.outcomes[Outcome.SAME] or result.outcomes[Outcome.DIFFERENT]):
        raise Unusable("nothing could be compared")
    return 1 if result.differs else 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar, where somebody watches; it is known only when the calls begin how many there are."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with click.progressbar(length=0, label="running again", file=sys.stderr) as bar:

        def show(done: int, of: int) -> None:
            bar.length = of
            if done % PROGRESS_EVERY == 0 or done == of:
                bar.update(done - bar.pos)

        yield show
