"""`kvtrail replay`: read a history, drive it again (`--engine`), or run it again against a connector (`--against`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.options import CONFIG, RECORDER, vllm_ready
from kvtrail.tracer.commands.options import FORCE, INCONCLUSIVE, TRACES, output_option
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.history.player import NoSuchStep, Player
from kvtrail.tracer.history.selection import NotInHistory, moment, requests_named, through
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.reports import json_lines, output_file, screen, terminal

MANY = 20_000
"""Events from which on judging them gets a progress bar."""
_LINES_AT_ONCE = 256


@click.command()
@TRACES
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
    "--plain", is_flag=True, help="Print every step as a line, also on a terminal; in a pipe this is the default."
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
    help="With --engine: `synthetic` runs the whole CPU engine, with a tiny model and made-up prompts.",
)
@click.option(
    "--against",
    metavar="CONNECTOR",
    help="Make the recorded calls again on this connector, and compare its answers with the recorded ones.",
)
@click.option(
    "--expect",
    type=click.Choice(["fixed", "same"]),
    help="With --against, for CI: `fixed` if the recorded faults must be gone and no new ones come, `same` if every answer"
    " must be the recorded one. One line and the exit code say whether it is so.",
)
@click.option("--connector", metavar="CONNECTOR", help="With --engine: another connector than the recorded one.")
@CONFIG
@RECORDER
@output_option(
    "With --engine: write what the new run recorded, a trace file; - is the standard output.", required=False
)
@FORCE
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
    expect: str | None,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Step through trace files, read together as one history: each event, and the account of its request beside it.

    A TRACE may also be the log of a vLLM server with LMCache. On a terminal single keys move through it, and ? lists them;
    elsewhere every step is a line. Findings appear where they are made.

    With --engine the history is not shown but driven again, on vLLM's real scheduler, with the recorded connector or another.

    With --against nothing is scheduled: the recorded calls are made again on a connector's scheduler side, and each answer is
    compared with the recorded one. CONNECTOR is a name that vLLM knows, or module:Class for one of your own.

    Exit code 0: no drift in what is shown, or in the new run; with --against, the same answers or only fixes, or what
    --expect asks for; 1: drift, or another difference; 2: a file or the connector cannot be used, or there is nothing to
    show; 3: too little could be compared.

    Example: kvtrail replay trace.jsonl

    Example: kvtrail replay trace.jsonl --request chatcmpl-7 --plain

    Example: kvtrail replay trace.jsonl --engine --connector my_module:Mine

    Example: kvtrail replay trace.jsonl --against LMCacheConnectorV1

    Example: kvtrail replay trace.jsonl --against my_module:Mine --expect fixed
    """
    of_reading, of_engine = (request, begin, end), (connector, config, recorder, output)
    if plain and as_json:
        raise click.UsageError("--plain and --json exclude each other")
    if against is not None:
        if again or plain or any(each is not None for each in (begin, end, connector, recorder, output)):
            raise click.UsageError("--against goes with --config, --request, --expect and --json only")
    elif expect is not None:
        raise click.UsageError("--expect goes with --against")
    elif again and (plain or any(each is not None for each in of_reading)):
        raise click.UsageError(
            "--engine drives the whole history; --request, --from, --to and --plain show a part of it"
        )
    elif not again and any(each is not None for each in of_engine):
        raise click.UsageError("--connector, --config, --recorder and --output are for --engine")
    if output is not None:
        output_file.check(output, sources=traces, force=force)
    if again or against is not None:
        vllm_ready(f"kvtrail replay --{'engine' if again else 'against'}")
    by_keys = not (again or against or plain or as_json) and terminal.is_interactive()
    if by_keys:
        from kvtrail.tracer.reports.console import keys_kept
    with (
        output_file.or_exit(output, NotInHistory, NoSuchStep, doing="the replay"),
        keys_kept() if by_keys else nullcontext(),
    ):
        with terminal.progress(traces) as on_bytes:
            history = load(traces, on_bytes=on_bytes)
        if against is not None:
            code = _run_again(history, against, config, request, expect, as_json)
        elif again:
            code = _drive_again(history, connector, config, recorder, tokens == "synthetic", output, as_json)
        else:
            code = _step_through(history, request, begin, end, as_json=as_json, by_keys=by_keys)
    context.exit(code)


def _step_through(
    history: History, request: str | None, begin: str | None, end: str | None, *, as_json: bool, by_keys: bool
) -> int:
    """Show the history; returns the exit code."""
    from_ns = None if begin is None else moment(history, begin)
    to_ns = None if end is None else through(moment(history, end))
    if from_ns is not None and to_ns is not None and to_ns < from_ns:
        raise NotInHistory(f"--to {end} is before --from {begin}")
    requests = None if request is None else requests_named(history, request)
    events = len(history.moments)
    shown = events >= MANY and sys.stderr.isatty()
    with click.progressbar(length=events, label="judging", file=sys.stderr) if shown else nullcontext() as bar:
        on_events = None if bar is None else bar.update
        player = Player(history, requests=requests, from_ns=from_ns, to_ns=to_ns, on_events=on_events)
    if by_keys:
        from kvtrail.tracer.reports.console import Console

        Console(player).run()
    elif as_json:
        _print(json_lines.lines(player))
    else:
        _print(screen.lines(player, columns=terminal.width()))
    return 1 if player.findings else 0


def _print(lines: Iterable[str]) -> None:
    lines = iter(lines)
    while some := list(islice(lines, _LINES_AT_ONCE)):
        terminal.echo("\n".join(some))


def _drive_again(
    history: History,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    whole_engine: bool,
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
            connector=connector,
            config=config,
            recorder=recorder,
            whole_engine=whole_engine,
            progress=lambda step, last: say(f"driving again: step {step:,} of about {last:,}"),
        )
    if output is not None:
        with output_file.opened(output) as file:
            file.writelines(otlp_json.spans_to_json_lines(driven.played.spans))
    if as_json:
        click.echo(json.dumps(report.as_dict(driven), indent=2))
    else:
        terminal.echo(report.as_text(driven, columns=terminal.width()))
    return 1 if driven.played.findings or driven.played.error or driven.played.unfinished else 0


def _run_again(
    history: History,
    against: str,
    config: dict[str, Any] | None,
    request: str | None,
    expect: str | None,
    as_json: bool,
) -> int:
    """Make the recorded calls again; returns the exit code."""
    from kvtrail.connector.known.environment import Unusable
    from kvtrail.connector.simulate.rerun import report
    from kvtrail.connector.simulate.rerun.outcome import Expected, Outcome
    from kvtrail.connector.simulate.rerun.rerun import rerun

    with output_file.or_exit(None, Unusable, doing="the replay"):
        with terminal.status() as say:
            result = rerun(
                history,
                against=against,
                config=config,
                request=request,
                progress=lambda done, of: say(f"running again: call {done:,} of {of:,}"),
            )
        expected = None if expect is None else Expected(expect)
        if as_json:
            terminal.echo(json.dumps(report.as_dict(result, expected), indent=2))
        else:
            terminal.echo(report.as_text(result, columns=terminal.width()))
            if expected is not None:
                terminal.echo(report.as_expected(result, expected))
        for file, line, reason in history.unreadable:
            click.echo(f"{file}:{line}: not read: {reason}", err=True)
    if expected is not None:
        return {True: 0, False: 1, None: INCONCLUSIVE}[result.meets(expected)]
    if not (result.outcomes[Outcome.SAME] or result.outcomes[Outcome.DIFFERENT]):
        click.echo("Inconclusive: nothing could be compared.", err=True)
        return INCONCLUSIVE
    return 1 if result.differs else 0
