"""`kvtrail replay`: print the steps of a history, or drive its load again, with the recorded connector or another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.options import CONFIG, RECORDER, vllm_ready
from kvtrail.tracer.commands.options import FORCE, INCONCLUSIVE, TRACES, output_option
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.history.player import NothingToShow, Player
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.reports import output_file, steps, terminal

RECORDED = "recorded"
"""The recorded connector, where another one might be named."""


@click.command()
@TRACES
@click.option("--request", metavar="ID", help="Show this request only; the engine's id or the caller's.")
@click.option("--step", type=int, metavar="N", help="Show this step only, with its request's account.")
@click.option("--finding", type=int, metavar="N", help="Show only the step with the Nth finding, likewise.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="KVTRAIL_REPLAY_JSON",
    help="With --against: print the comparison as one JSON document, for machines.",
)
@click.option(
    "--against",
    metavar="CONNECTOR",
    help="Drive the recorded load again on vLLM's real scheduler, with this connector or with the `recorded` one, and compare"
    " each of its answers with the recorded one: same lengths, arrivals and shared prefixes, no model.",
)
@CONFIG
@RECORDER
@output_option("With --against: write what the new run recorded, a trace file; - is the standard output.")
@FORCE
@click.pass_context
def replay(
    context: click.Context,
    traces: tuple[Path, ...],
    request: str | None,
    step: int | None,
    finding: int | None,
    as_json: bool,
    against: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Print the steps of trace files, read together as one history: each event, and what it changed in its request's account.

    A TRACE may also be the log of a vLLM server with LMCache. Findings appear at the step that shows them. --step and
    --finding show one step, with all that is known of its request then.

    With --against the history is not shown: its load is driven again on vLLM's real scheduler, with the recorded connector
    (--against recorded), or with another one or another version of it: a name that vLLM knows, or module:Class for one of
    your own. Every lookup and every allocation is compared with the recorded one.

    Exit code 0: no drift in what is shown, or in the new run; 1: drift, or a new run with a dead engine or a request without
    an end; 2: a file or the connector cannot be used, or there is nothing to show; 3: with --against, no drift, but no
    answer could be compared.

    Example: kvtrail replay trace.jsonl

    Example: kvtrail replay trace.jsonl --request chatcmpl-7 | less

    Example: kvtrail replay trace.jsonl --finding 1

    Example: kvtrail replay trace.jsonl --against recorded

    Example: kvtrail replay trace.jsonl --against LMCacheConnectorV1
    """
    drives = against is not None
    if step is not None and finding is not None:
        raise click.UsageError("--step and --finding exclude each other")
    if drives and any(each is not None for each in (request, step, finding)):
        raise click.UsageError("--against drives the whole history; --request, --step and --finding show a part of it")
    if not drives and (as_json or any(each is not None for each in (config, recorder, output))):
        raise click.UsageError("--config, --recorder, --output and --json go with --against")
    if output is not None:
        output_file.check(output, sources=traces, force=force)
    if drives:
        vllm_ready("kvtrail replay --against")
    with output_file.or_exit(output, NothingToShow, doing="the replay"):
        with terminal.reading(traces):
            history = load(traces)
        if against is not None:
            code = _drive_again(history, against, config, recorder, output, as_json)
        else:
            player = Player(history, request=request)
            only = None if step is None else player.step(step)
            if finding is not None:
                only = player.step_of_finding(finding)
            for line in steps.lines(player, only=only, columns=terminal.width()):
                terminal.echo(line)
            code = 1 if player.findings else 0
    context.exit(code)


def _drive_again(
    history: History,
    against: str,
    config: dict[str, Any] | None,
    recorder: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Drive the history again, and write the run's own trace to `output`; returns the exit code."""
    from kvtrail.connector.simulate.redrive import report
    from kvtrail.connector.simulate.redrive.redrive import redrive
    from kvtrail.connector.simulate.redrive.workload import NotDrivable
    from kvtrail.connector.simulate.run import Unbuildable

    with output_file.or_exit(output, NotDrivable, Unbuildable, doing="the replay"), terminal.status() as say:
        driven = redrive(
            history,
            connector=None if against == RECORDED else against,
            config=config,
            recorder=recorder,
            progress=lambda step, last: say(f"driving again: step {step:,} of about {last:,}"),
        )
    if output is not None:
        with output_file.opened(output) as file:
            file.writelines(otlp_json.spans_to_json_lines(driven.played.spans))
    if as_json:
        terminal.echo(json.dumps(report.as_dict(driven), indent=2))
    else:
        terminal.echo(report.as_text(driven, columns=terminal.width()))
    for file_name, line, reason in history.unreadable:
        click.echo(f"{file_name}:{line}: not read: {reason}", err=True)
    played = driven.played
    if played.findings or played.error or played.unfinished:
        return 1
    return 0 if driven.comparison.has_compared else INCONCLUSIVE
