"""`kvtrail import`: turns the log of a server into a trace file."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

import click

from kvtrail.tracer.commands.options import FORCE, output_option
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.logs.lines import Record
from kvtrail.tracer.ingest.logs.reader import LogReader, names
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.reports import output_file, terminal
from kvtrail.tracer.reports.output_file import STDOUT

_MAX_SHOWN = 300


@click.command("import")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@output_option("Trace file to write, OTLP JSON Lines; - is the standard output.", required=False)
@FORCE
@click.option(
    "--engine", help="Name of the engine that wrote all these logs. Without it, each file is an engine of its own."
)
@click.option("--story", is_flag=True, help="Print what the log shows of each request, one line for each moment.")
@click.option(
    "--show-unread", is_flag=True, help="Print the lines that kvtrail does not understand, with file and line."
)
def import_log(
    logs: tuple[Path, ...],
    output: Path | None,
    force: bool,
    engine: str | None,
    story: bool,
    show_unread: bool,
) -> None:
    """Turn the logs of a vLLM server with LMCache into a trace file for `kvtrail audit`.

    LOG may be gzipped, and - is the standard input. A log shows only part of what happened, and the rest is `unknown`;
    docs/importing.md says what that is. `kvtrail audit LOG` imports and judges at once.

    Exit code 0: something was read; 2: a file cannot be used.

    Example: kvtrail import server.log -o trace.jsonl
    """
    if output is None and not (story or show_unread):
        raise click.UsageError("say where to write with -o, or ask for --story or --show-unread")
    if output is not None:
        output_file.check(output, force=force, sources=logs)
    aside = output == STDOUT  # the standard output belongs to the trace
    with output_file.or_exit(output), nullcontext() if output is None else output_file.opened(output) as file:
        events = 0
        for path, name in zip(logs, names(logs), strict=True):
            unread = partial(_print_unread, path, aside) if show_unread else None
            with terminal.progress([path]) as on_bytes:
                reader = LogReader(path, engine=engine or name, on_unread=unread, on_bytes=on_bytes)
                events += _write(reader, file)
            if story:
                _print_stories(reader, aside)
            click.echo(_summary(path, reader), err=True)
        if file is not None and not events:
            raise UnusableTrace("no line of these logs is an event; --story shows what they say")
    if output is not None and output != STDOUT:
        click.echo(f"{output}: {events} events; judge them with: kvtrail audit {output}", err=True)


def _write(reader: LogReader, file: IO[str] | None) -> int:
    """Write the reader's spans; returns how many. Without a file, they are only read, for the story and the summary."""
    spans = reader.spans()
    count = 0
    while batch := list(islice(spans, otlp_json.SPANS_A_LINE)):
        count += len(batch)
        if file is not None:
            file.write(otlp_json.spans_to_json_line(batch) + "\n")
    return count


def _print_stories(reader: LogReader, aside: bool) -> None:
    for story in reader.stories.all():
        click.echo("\n".join([*story.lines(), ""]), err=aside)
    if reader.stories.forgotten:
        click.echo(f"... and {reader.stories.forgotten} more requests; their moments were dropped.", err=aside)


def _print_unread(path: Path, aside: bool, record: Record) -> None:
    click.echo(f"{path}:{record.number}: {record.text[:_MAX_SHOWN]}", err=aside)


def _summary(path: Path, reader: LogReader) -> str:
    text = f"{path}: {reader.understood} lines read, {reader.unread} unread, {reader.repeated} printed twice."
    return text + "".join(f" Line {number}: {reason}." for number, reason in reader.bad_lines)
