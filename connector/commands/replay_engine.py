"""`kvtrail replay --engine`: drive a recording again, and say what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.needs import progress, vllm_ready
from kvtrail.tracer.ingest import otlp
from kvtrail.tracer.replay.history import load
from kvtrail.tracer.reports import output_file, terminal


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
    """Print what came of it, and write the run's own trace to `output`; returns the exit code: 1 if the run has
    findings, died, or left requests unfinished, else 0.

    Raises:
        UnusableTrace, NotDrivable, Unbuildable: with what is wrong, and the reason.
        OSError: `output` cannot be written.
    """
    vllm_ready("kvtrail replay --engine")
    from kvtrail.connector.simulate.redrive import report
    from kvtrail.connector.simulate.redrive.redrive import redrive

    with terminal.progress(traces) as on_bytes:
        history = load(traces, on_bytes=on_bytes)
    with progress("driving again") as on_steps:
        driven = redrive(
            history, connector=connector, config=config, recorder=recorder, whole_engine=whole_engine, progress=on_steps
        )
    if output is not None:
        with output_file.opened(output) as file:
            file.writelines(otlp.spans_to_json_lines(driven.played.spans))
    if as_json:
        click.echo(json.dumps(report.as_dict(driven), indent=2))
    else:
        terminal.echo(report.as_text(driven, columns=terminal.width()))
    return 1 if driven.played.findings or driven.played.error or driven.played.unfinished else 0
