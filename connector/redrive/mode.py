"""`kvtrail replay --engine`: drive a recording again, and say what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from connector.drive.needs import vllm_ready
from tracer import destination, otlp, terminal
from tracer.replay.history import load

_LINE_SPANS = 256


def drive_again(
    traces: Sequence[Path],
    *,
    connector: str | None,
    config: Mapping[str, Any] | None,
    recorder: str | None,
    whole_engine: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    """Print what came of it, and write the run's own trace to `output`; returns the exit code.

    Raises:
        UnusableTrace, NotDrivable, Unbuildable: with what is wrong, and the reason.
        OSError: `output` cannot be written.
    """
    vllm_ready("kvtrail replay --engine")
    from connector.redrive import report
    from connector.redrive.redrive import redrive
    from connector.redrive.workload import workload_of

    with terminal.progress(traces) as on_bytes:
        history = load(traces, on_bytes=on_bytes)
    steps = max((each.at_step for each in workload_of(history, recorder=recorder).scenario.arrivals), default=0)
    with _progress(steps) as on_step:
        driven = redrive(
            history, connector=connector, config=config, recorder=recorder, whole_engine=whole_engine, on_step=on_step
        )
    if output is not None:
        spans = driven.played.spans
        with destination.opened(output) as file:
            for first in range(0, len(spans), _LINE_SPANS):
                file.write(otlp.spans_to_json_line(spans[first : first + _LINE_SPANS]) + "\n")
    if as_json:
        click.echo(json.dumps(report.as_dict(driven), indent=2))
    else:
        terminal.echo(report.as_text(driven, columns=terminal.width()))
    return 1 if driven.played.findings or driven.played.error or driven.played.unfinished else 0


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, where somebody watches; a run ends some time after the last arrival."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    with click.progressbar(length=steps, label="driving again", file=sys.stderr) as bar:
        yield lambda step: bar.update(max(0, min(step, steps) - bar.pos))
