"""`kvtrail savings`: what less or more memory would have been worth."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvtrail.tracer.capacity.estimate import as_dict, estimate
from kvtrail.tracer.capacity.stream import Stream, streams_of
from kvtrail.tracer.commands.options import INCONCLUSIVE, TRACES
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.model.engines import memory_limit
from kvtrail.tracer.reports import output_file, terminal
from kvtrail.tracer.reports import savings as report

GIB = 1 << 30


@click.command()
@TRACES
@click.option(
    "--gib",
    "sizes_gib",
    multiple=True,
    type=click.FloatRange(min=0, min_open=True),
    envvar="KVTRAIL_SAVINGS_GIB",
    help="A store to look at, in GiB on each worker; may be given several times. [default: some around today's]",
)
@click.option(
    "--chunks",
    multiple=True,
    type=click.IntRange(min=1),
    envvar="KVTRAIL_SAVINGS_CHUNKS",
    help="A store to look at, in chunks; may be given several times.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    envvar="KVTRAIL_SAVINGS_SAMPLE",
    help="Follow a sample of at most so many chunks, for long histories. [default: all]",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar="KVTRAIL_SAVINGS_JSON", help="Print one JSON document, for scripts."
)
@click.pass_context
def savings(
    context: click.Context,
    traces: tuple[Path, ...],
    sizes_gib: tuple[float, ...],
    chunks: tuple[int, ...],
    sample: int | None,
    as_json: bool,
) -> None:
    """Reckon what a recorded run would have been given by a store of another size, and by one that knows the future.

    It needs the block hashes of prompts, which level `detailed` records. TRACE is what `kvtrail audit` reads.

    Exit code 0: it was reckoned; 2: a file cannot be used; 3: no admission with block hashes is in it.

    Example: kvtrail savings trace.jsonl

    Example: kvtrail savings --gib 8 --gib 32 --json trace.jsonl
    """
    with output_file.or_exit(None, doing="the reckoning"):
        with terminal.progress(traces) as on_bytes:
            history = load(traces, on_bytes=on_bytes)
        estimates = []
        for stream in streams_of(history.events):
            if sizes_gib and not stream.chunk_bytes:
                raise click.UsageError(
                    f"no copy of {stream.connector} says how many bytes a chunk has, so --gib cannot be used: give --chunks"
                )
            sizes = [int(size * GIB / (stream.chunk_bytes or 1)) for size in sizes_gib]
            limit = _limit(history, stream)
            estimates.append(estimate(stream, limit=limit, sizes=[*chunks, *sizes], most_chunks=sample))
        names = history.engine_names()
        if as_json:
            text = json.dumps({"estimates": [as_dict(each, names) for each in estimates]}, indent=2)
        else:
            text = report.as_text(estimates, names, columns=terminal.width())
    for file, line, reason in history.unreadable:
        click.echo(terminal.plain(f"not read: {file}:{line}: {reason}"), err=True)
    if text:
        terminal.echo(text)
    if all(each.stream.unhashed == each.stream.admissions for each in estimates):
        click.echo(
            "Nothing can be reckoned: no admission with block hashes is in it. Record with KVTRAIL_LEVEL=detailed.",
            err=True,
        )
        context.exit(INCONCLUSIVE)


def _limit(history: History, stream: Stream) -> int | None:
    """The bytes that a stream's store may hold on each worker; None where the engine's settings do not say."""
    recorders = dict.fromkeys(event.recorder for event in history.events if event.engine == stream.engine)
    return next((limit for each in recorders if (limit := memory_limit(history.resource(each)))), None)
