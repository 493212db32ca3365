"""`kvtrail export`: a history as a file for tools that show timelines."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvtrail.tracer.commands.options import FORCE, TRACES, output_option
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.perfetto import trace_events
from kvtrail.tracer.ingest.files import STDIN
from kvtrail.tracer.model import words
from kvtrail.tracer.reports import output_file, terminal
from kvtrail.tracer.reports.output_file import STDOUT

ENDING = ".perfetto.json"


@click.command()
@TRACES
@output_option(
    f"File to write; - is the standard output. [default: the first trace's name with {ENDING}, in this folder]",
    required=False,
)
@FORCE
def export(traces: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Write a recorded history as a file of Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

    Requests are tracks, their phases and calls are slices, and findings are marks with arrows between their witnesses.
    TRACE is what `kvtrail audit` reads: files, folders, logs.

    Exit code 0: it was written; 2: a file cannot be used.

    Example: kvtrail export trace.jsonl

    Example: kvtrail export trace.jsonl -o timeline.json
    """
    output = output or _named_like(traces[0])
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
        click.echo(f"{output}: {words.some(count, 'trace event')}; open it with https://ui.perfetto.dev", err=True)


def _named_like(trace: Path) -> Path:
    """The file to write for a trace, in the current folder: `run.jsonl.gz` gives `run.perfetto.json`."""
    name = "timeline" if trace == STDIN else trace.absolute().name
    for ending in (".gz", ".zst", ".jsonl", ".json", ".log"):
        name = name.removesuffix(ending)
    return Path(f"{name}{ENDING}")


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
