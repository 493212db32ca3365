"""`kvtrail replay`: read a history, or run it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.needs import as_json_object
from kvtrail.connector.commands.replay_read import step_through
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.replay.player import NoSuchStep
from kvtrail.tracer.replay.selection import NotInHistory
from kvtrail.tracer.reports import output_file


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option(
    "--request", metavar="ID", help="Show this request only: its id, the external one, or the beginning of either."
)
@click.option(
    "--from",
    "begin",
    envvar="KVTRAIL_REPLAY_FROM",
    metavar="TIME",
    help="Show the steps from this time on (UTC), or from +SECONDS on.",
)
@click.option(
    "--to",
    "end",
    envvar="KVTRAIL_REPLAY_TO",
    metavar="TIME",
    help="Show the steps up to this time (UTC), or up to +SECONDS.",
)
@click.option(
    "--plain", is_flag=True, help="Print every step as a line, also on a terminal; in a pipe that is so anyway."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="KVTRAIL_REPLAY_JSON",
    help="Print every step as a line of JSON, for machines; with --engine, one JSON document.",
)
@click.option(
    "--engine",
    "again",
    is_flag=True,
    envvar="KVTRAIL_REPLAY_ENGINE",
    help="Drive the recording again on vLLM's real scheduler: same lengths, arrivals and shared prefixes, no model.",
)
@click.option(
    "--tokens",
    type=click.Choice(["none", "synthetic"]),
    default="none",
    show_default=True,
    help="With --engine: `synthetic` takes the whole CPU engine, with a tiny model and made-up prompts.",
)
@click.option(
    "--against",
    metavar="CONNECTOR",
    help="Make the recorded calls again on this connector, and compare its answers with the recorded ones.",
)
@click.option("--connector", metavar="CONNECTOR", help="With --engine: another connector than the recorded one.")
@click.option(
    "--config",
    callback=as_json_object,
    metavar="JSON",
    help="The connector's kv_connector_extra_config, if not as recorded.",
)
@click.option(
    "--recorder", metavar="ID", help="With --engine: the recorder, or its engine, where the trace is of several."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --engine: write what the new run recorded, a trace file; - is the standard output.",
)
@click.option("--force", is_flag=True, help="Write over an output file that is there already.")
@click.pass_context
def replay(
    context: click.Context,
    traces: tuple[Path, ...],
    request: str | None,
    begin: str | None,
    end: str | None,
    plain: bool,
    as_json: bool,
    again: bool,
    tokens: str,
    against: str | None,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Step through trace files, read together as one history: each event, and the account of its request beside it.

    A TRACE may also be the log of a vLLM server with LMCache. On a terminal single keys move through it, and ? tells which;
    elsewhere every step is a line. Findings stand where they are made.

    With --engine the history is not shown but driven again, on vLLM's real scheduler, with the recorded connector or another.

    With --against nothing is scheduled: the recorded calls are made again on a connector's scheduler side, and each answer is
    compared with the recorded one. CONNECTOR is a name that vLLM knows, or module:Class for one of your own.

    Exit code 0: no drift in what is shown, or in the new run; with --against, the same answers or only fixes; 1: drift, or
    another difference; 2: a file or the connector cannot be used, or there is nothing to show.

    Example: kvtrail replay trace.jsonl

    Example: kvtrail replay trace.jsonl --request chatcmpl-7 --from 14:59:37 --plain

    Example: kvtrail replay trace.jsonl --engine --connector my_package.my_module:MyConnector

    Example: kvtrail replay trace.jsonl --against LMCacheConnectorV1
    """
    _check(
        plain=plain,
        as_json=as_json,
        again=again,
        against=against is not None,
        reading=[begin, end] if against is not None else [request, begin, end],
        driving=[connector, recorder, output] if against is not None else [connector, config, recorder, output],
    )
    try:
        if against is not None:
            code = _run_again(traces, against, config, request, as_json)
        elif again:
            code = _drive_again(traces, connector, config, recorder, tokens, output, force, as_json)
        else:
            code = step_through(traces, request=request, begin=begin, end=end, plain=plain, as_json=as_json)
    except KeyboardInterrupt:
        context.exit(130)
    except (UnusableTrace, NotInHistory, NoSuchStep) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(2)
    except (BrokenPipeError, click.ClickException):
        raise  # whoever read our output has seen enough; click knows what to do
    except Exception as error:  # a defect of ours: exit code 1 would say that there is drift
        click.echo(f"Error: the replay failed: {type(error).__name__}: {error}", err=True)
        context.exit(2)
    context.exit(code)


def _check(plain: bool, as_json: bool, again: bool, *, against: bool, reading: list[Any], driving: list[Any]) -> None:
    if plain and as_json:
        raise click.UsageError("--plain and --json exclude each other")
    if against:
        if again or plain or any(each is not None for each in (*reading, *driving)):
            raise click.UsageError("--against goes with --config, --request and --json only")
        return
    if again and (plain or any(each is not None for each in reading)):
        raise click.UsageError(
            "--engine drives the whole history; --request, --from, --to and --plain show a part of it"
        )
    if not again and any(each is not None for each in driving):
        raise click.UsageError("--connector, --config, --recorder and --output are for --engine")


def _run_again(
    traces: tuple[Path, ...], against: str, config: dict[str, Any] | None, request: str | None, as_json: bool
) -> int:
    from kvtrail.connector.commands.replay_against import run_against
    from kvtrail.connector.known.environment import Unusable

    try:
        return run_against(traces, against=against, config=config, request=request, as_json=as_json)
    except Unusable as error:
        raise UnusableTrace(str(error)) from error


def _drive_again(
    traces: tuple[Path, ...],
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    tokens: str,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    from kvtrail.connector.commands.replay_engine import drive_again
    from kvtrail.connector.simulate.redrive.workload import NotDrivable
    from kvtrail.connector.simulate.run import Unbuildable

    if output is not None:
        output_file.check(output, sources=traces, force=force)
    try:
        return drive_again(
            traces,
            connector=connector,
            config=config,
            recorder=recorder,
            whole_engine=tokens == "synthetic",
            output=output,
            as_json=as_json,
        )
    except (NotDrivable, Unbuildable) as error:
        raise UnusableTrace(str(error)) from error
    except OSError as error:
        raise UnusableTrace(f"{output}: {error.strerror or error}") from error
