"""`kvtrail export`: a history as a file for tools that show timelines."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvtrail.tracer.commands.options import FORCE, TRACES, output_option
from kvtrail.tracer.model import words
from kvtrail.tracer.replay.history import History, load
from kvtrail.tracer.replay.judging import findings_of
from kvtrail.tracer.replay.perfetto import trace_events
from kvtrail.tracer.reports import output_file, terminal
from kvtrail.tracer.reports.output_file import STDOUT


@click.command()
@TRACES
@click.option("--perfetto", is_flag=True, help="As Chrome trace events, for ui.perfetto.dev and chrome://tracing.")
@output_option("File to write; - is the standard output.")
@FORCE
def export(traces: tuple[Path, ...], perfetto: bool, output: Path, force: bool) -> None:
    """Write a recorded history as a file that ui.perfetto.dev and chrome://tracing open.

    Requests are tracks, their phases and calls are slices, and findings are marks with arrows between their witnesses.
    TRACE is what `kvtrail audit` reads: files, folders, logs.

    Exit code 0: it was written; 2: a file cannot be used.

    Example: kvtrail export trace.jsonl --perfetto -o timeline.json
    """
    if not perfetto:
        raise click.UsageError("say for which tool: --perfetto")
    output_file.check(output, sources=traces, force=force)
    with output_file.or_exit(output):
        with terminal.progress(traces) as on_bytes:
            history = load(traces, on_bytes=on_bytes)
        count = _write(history, output)
    for file, line, reason in history.unreadable:
        click.echo(terminal.plain(f"not read: {file}:{line}: {reason}"), err=True)
    for name, number in {**history.unknown, **history.unknown_attributes}.items():
        click.echo(
            terminal.plain(f"not understood: {name}, {words.ending(number)}: a newer kvtrail wrote it"), err=True
        )
    if output != STDOUT:
        click.echo(f"{output}: {words.some(count, 'trace event')}; open it with ui.perfetto.dev", err=True)


def _write(history: History, output: Path) -> int:
    """Write the trace events, one a line; returns how many."""
    findings = list(findings_of(history.events).values())
    count = 0
    with output_file.opened(output) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for count, event in enumerate(trace_events(history, findings), start=1):
            file.write((",\n" if count > 1 else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")
    return count
