"""The tracer's own commands."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrail.tracer.serve.options import Options

if TYPE_CHECKING:
    from kvtrail.tracer.detect.rules import Rule

_DEFAULT = Options()
PORT = click.IntRange(1, 65535)
MOST_HOURS = 10**6
"""More than a century: for ever."""


def _finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter("it must be a number of hours")
    return value


@click.command()
@click.option("--host", default=_DEFAULT.host, show_default=True, help="Address to listen on.")
@click.option("--grpc-port", type=PORT, default=_DEFAULT.grpc_port, show_default=True, help="Port for OTLP over gRPC.")
@click.option(
    "--http-port",
    type=PORT,
    default=_DEFAULT.http_port,
    show_default=True,
    help="Port for OTLP over HTTP, api, metrics and /docs.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_DEFAULT.store,
    show_default=True,
    help="SQLite file that holds spans, accounts and findings.",
)
@click.option(
    "--trace-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also append all spans to this file, as OTLP JSON Lines, for `kvtrail audit`.",
)
@click.option(
    "--retain-hours",
    default=_DEFAULT.retain_hours,
    show_default=True,
    type=click.FloatRange(min=0.01, max=MOST_HOURS),
    callback=_finite,
    help="Drop spans and requests older than this; findings stay.",
)
@click.option(
    "--max-requests",
    default=_DEFAULT.max_requests,
    show_default=True,
    type=click.IntRange(min=1),
    help="Requests held in memory; one that had to leave and comes back is unknown.",
)
@click.option(
    "--nice",
    default=_DEFAULT.nice,
    show_default=True,
    type=click.IntRange(0, 19),
    help="Lower the process's priority by so much: an engine on the same cores goes first.",
)
def serve(
    host: str,
    grpc_port: int,
    http_port: int,
    store: Path,
    trace_file: Path | None,
    retain_hours: float,
    max_requests: int,
    nice: int,
) -> None:
    """Run the tracer: receive spans, judge them, serve api and metrics.

    Example: kvtrail serve --store /var/lib/kvtrail/kvtrail.db
    """
    from kvtrail.tracer.serve.receivers import PortTaken
    from kvtrail.tracer.serve.server import serve as run
    from kvtrail.tracer.store import StoreError

    if grpc_port == http_port:
        raise click.UsageError(f"--grpc-port and --http-port are both {grpc_port}; each needs one of its own")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        run(Options(host, grpc_port, http_port, store, trace_file, retain_hours, max_requests, nice))
    except (PortTaken, StoreError) as error:
        raise click.ClickException(str(error)) from error


def _rules(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> list[Rule] | None:
    """The rules by their names; None, all of them, when none is named."""
    return [_rule(name) for name in dict.fromkeys(names)] or None


def _explain(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Print a rule's page and end, as --help does."""
    if name is None or context.resilient_parsing:
        return
    from kvtrail.tracer.reports import terminal
    from kvtrail.tracer.reports.findings import rule_page

    terminal.echo(rule_page(_rule(name), columns=terminal.width()))
    context.exit(0)


def _rule(name: str) -> Rule:
    from kvtrail.tracer.detect.rules import all_rules

    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        raise click.BadParameter(f"there is no rule {name!r}. The rules are: {', '.join(known)}")
    return known[name]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    callback=_rules,
    envvar="KVTRAIL_AUDIT_RULE",
    metavar="RULE",
    help="Judge by this rule only; may be given several times.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    envvar="KVTRAIL_AUDIT_ALL",
    help="Show all requests under a rule, not the first ten.",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar="KVTRAIL_AUDIT_JSON", help="Print one JSON document, for machines."
)
@click.option(
    "--explain",
    metavar="RULE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Print what a rule says, why, and what to do about it, instead of an audit.",
)
@click.pass_context
def audit(
    context: click.Context, files: tuple[Path, ...], rules: list[Rule] | None, everything: bool, as_json: bool
) -> None:
    """Judge trace files together, of kvtrail or an OpenTelemetry Collector, and explain what contradicts itself.

    A FILE may be a folder of them, and compressed with gzip or zstd; docs/traces.md says what is read. A FILE may also be the
    log of a vLLM server with LMCache: what it shows is judged and told, the rest is unknown.

    Exit code 0: no drift found; 1: drift; 2: a file cannot be used, or there is no such rule.

    Example: kvtrail audit trace.jsonl

    Example: kvtrail audit --rule stale-lookup --all trace.jsonl

    Example: kvtrail audit --explain stale-lookup
    """
    from kvtrail.tracer.ingest.trace_file import UnusableTrace
    from kvtrail.tracer.replay.audit import audit as judge
    from kvtrail.tracer.reports import terminal
    from kvtrail.tracer.reports.findings import as_text

    try:
        with terminal.progress(files) as on_bytes:
            result = judge(files, rules=rules, on_bytes=on_bytes)
        text = (
            json.dumps(result.as_dict(), indent=2)
            if as_json
            else as_text(result, columns=terminal.width(), everything=everything)
        )
    except UnusableTrace as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(2)
    except Exception as error:  # a defect of ours: exit code 1 would say that there is drift
        click.echo(f"Error: the audit failed: {type(error).__name__}: {error}", err=True)
        context.exit(2)
    terminal.echo(text)
    if result.stories and not as_json:
        terminal.echo("\n" + "\n".join(["What the log shows:", "", *result.stories]).rstrip())
    context.exit(1 if result.drift else 0)
