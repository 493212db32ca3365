"""`kvtrail audit`: judges trace files and logs, and explains requests, savings and rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kvtrail.tracer.commands.options import FORCE, INCONCLUSIVE, Duration, Store, rule_named
from kvtrail.tracer.events.ids import bounded
from kvtrail.tracer.history.audit import Audit, audit_stored
from kvtrail.tracer.history.audit import audit as judge
from kvtrail.tracer.history.history import load, of_spans
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.model import words
from kvtrail.tracer.reports import findings, output_file, terminal
from kvtrail.tracer.reports.causes import as_text as causes_text
from kvtrail.tracer.reports.output_file import STDOUT
from kvtrail.tracer.reports.savings import as_text as savings_text
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.rule import Rule
from kvtrail.tracer.rules.rule_set import all_rules
from kvtrail.tracer.store import StoreError

if TYPE_CHECKING:
    from kvtrail.tracer.events.spans import Span
    from kvtrail.tracer.store.clickhouse.connection import Address
    from kvtrail.tracer.store.reader import Reader


Explained = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""By engine and request: why the tokens were reused or computed, for each admission."""


def _rules(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> list[Rule] | None:
    """The rules with these names; None, meaning all of them, if no rule is named."""
    named = {rule_named(name) for name in names}
    return [rule for rule in all_rules() if rule.id in named] or None


def _explain(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Print a rule's Markdown page and exit, like --help."""
    if name is not None and not context.resilient_parsing:
        rule = rule_named(name)
        click.echo(pages.page(rule).section(rule), nl=False)
        context.exit(0)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="FILE...")
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
    help="Show every request under a rule, not just the first ten.",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar="KVTRAIL_AUDIT_JSON", help="Print one JSON document, for scripts."
)
@click.option(
    "--store",
    type=Store(),
    help="Instead of files, judge a store: the SQLite file of a sidecar, or `clickhouse://user:password@host:port/database`.",
)
@click.option(
    "--since",
    type=Duration(),
    default="24h",
    show_default=True,
    help="How far back to go in --store: a number with s, m, h or d.",
)
@click.option(
    "--why",
    metavar="REQUEST",
    help="Instead of an audit, print why each token of this request was reused or computed. Its id is the engine's or the"
    " caller's. With --store, the stored answer is printed, and --since has no effect.",
)
@click.option(
    "--savings",
    is_flag=True,
    help="Instead of an audit, print what the offload saved, and what a larger or smaller store would have given.",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead of an audit, write all logs and traces as one trace file; - is standard output.",
)
@FORCE
@click.option(
    "--explain",
    metavar="RULE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Instead of an audit, print what a rule checks, why, and what to do about it.",
)
@click.pass_context
def audit(
    context: click.Context,
    files: tuple[Path, ...],
    rules: list[Rule] | None,
    everything: bool,
    as_json: bool,
    store: Any,
    since: timedelta,
    why: str | None,
    savings: bool,
    export: Path | None,
    force: bool,
) -> None:
    """Judge trace files from kvtrail or an OpenTelemetry Collector together, and explain every finding.

    A FILE may be compressed with gzip or zstd; docs/logs-and-traces.md lists the formats. It may also be the log of a
    vLLM server with LMCache: what the log shows is judged, the rest is unknown; `kvtrail replay` prints it step by step.

    With --store, the stored spans are judged again, by the current rules.

    Exit code 0: no drift; 1: drift; 2: a file cannot be used, or there is no such rule; 3: no drift, but inconclusive:
    no kvtrail spans, no hit, missing events, damaged lines, an engine that died or has no end record, or a request
    without an end. With --savings: 0, or 3 if nothing is known of other store sizes.

    Example: kvtrail audit trace.jsonl

    Example: kvtrail audit --rule stale-lookup --all trace.jsonl

    Example: kvtrail audit --store /var/lib/kvtrail/kvtrail.db --since 24h

    Example: kvtrail audit --why chatcmpl-1 trace.jsonl

    Example: kvtrail audit --savings trace.jsonl

    Example: kvtrail audit --export trace.jsonl server.log

    Example: kvtrail audit --explain stale-lookup
    """
    if (store is None) != bool(files):
        both = "name either files to judge or a store with --store, not both"
        raise click.UsageError("name the files to judge, or a store with --store" if store is None else both)
    if (why is not None) + savings + (export is not None) > 1:
        raise click.UsageError("--why, --savings and --export exclude each other")
    if export is not None:
        _export(context, files, store, since, export, force=force)
    if force:
        raise click.UsageError("--force goes with --export")
    why = why and bounded(why)
    if savings:
        rules = []  # nothing is judged
    with output_file.or_exit(None, StoreError, doing="the audit"):
        if store is not None and why is not None:
            _explain_request(context, _stored_causes(store, why), why, as_json=as_json)
        if store is not None:
            result = audit_stored(_stored(store, since), str(store), rules=rules, savings=savings)
        else:
            with terminal.reading(files):
                result = judge(files, rules=rules, why=why, savings=savings)
        if why is not None:
            _explain_request(context, result.explained, why, as_json=as_json)
        if savings:
            _print_savings(context, result, as_json=as_json)
        if as_json:
            text = json.dumps(result.as_dict(), indent=2)
        else:
            text = findings.as_text(result, columns=terminal.width(), everything=everything)
    terminal.echo(text)
    context.exit(1 if result.findings else INCONCLUSIVE if result.inconclusive else 0)


def _explain_request(context: click.Context, explained: Explained, why: str, *, as_json: bool) -> NoReturn:
    """Print why the tokens of a request were reused or computed, and exit."""
    if not explained:
        raise click.UsageError(
            f"no request has the id {why!r}, the engine's or the caller's; of an X-Request-Id vLLM's server makes"
            " `cmpl-ID-0` or `chatcmpl-ID`"
        )
    entries = [
        {"engine": engine, "request": request, "causes": causes} for (engine, request), causes in explained.items()
    ]
    terminal.echo(json.dumps(entries, indent=2) if as_json else causes_text(explained, columns=terminal.width()))
    context.exit(0)


def _print_savings(context: click.Context, result: Audit, *, as_json: bool) -> NoReturn:
    """Print what the offload saved, and exit."""
    if as_json:
        terminal.echo(json.dumps({"savings": [each.as_dict(result.engine_names) for each in result.saved]}, indent=2))
    elif result.saved:
        terminal.echo(savings_text(result.saved, result.engine_names, columns=terminal.width()))
    for file, line, reason in result.unreadable:
        click.echo(terminal.plain(f"not read: {file}:{line}: {reason}"), err=True)
    is_known = any(each.memory for each in result.saved)
    if not is_known:
        click.echo(
            "Nothing is known of other store sizes: no admission has block hashes. Record with KVTRAIL_LEVEL=detailed.",
            err=True,
        )
    context.exit(0 if is_known else INCONCLUSIVE)


def _stored_causes(store: Path | Address, why: str) -> Explained:
    """The stored causes of the requests with this id. Raises StoreError if the store cannot be read."""
    reader = reader_of(store)
    one = reader.request(why)
    rows = [] if one is None else [*reader.requests(search=why), one]
    return {(row["engine"], row["request"]): row["causes"] for row in rows if why in (row["request"], row["external"])}


def reader_of(store: Path | Address) -> Reader:
    """The reading side of the store at a path or an address. Raises StoreError if there is none."""
    from kvtrail.tracer.store.clickhouse.connection import Address
    from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
    from kvtrail.tracer.store.sqlite.opening import check_file
    from kvtrail.tracer.store.sqlite.store import SqliteReader

    if isinstance(store, Address):
        return ClickHouseReader(store)
    check_file(store)
    return SqliteReader(store)


def _export(
    context: click.Context,
    files: tuple[Path, ...],
    store: Path | Address | None,
    since: timedelta,
    output: Path,
    *,
    force: bool,
) -> NoReturn:
    """Write the history as one trace file, and exit."""
    output_file.check(output, sources=files, force=force)
    with output_file.or_exit(output, StoreError):
        if store is not None:
            history = of_spans((str(store), span) for spans in _stored(store, since)() for span in spans)
        else:
            with terminal.reading(files):
                history = load(files)
        spans = [span for _, span in history.moments] + list(history.foreign)
        if not spans:
            raise UnusableTrace("no line of these files is an event")
        with output_file.opened(output) as file:
            file.writelines(otlp_json.spans_to_json_lines(spans))
    for name, line, reason in history.unreadable:
        click.echo(terminal.plain(f"not read: {name}:{line}: {reason}"), err=True)
    for name, number in history.unknown.items():
        click.echo(
            terminal.plain(f"not understood: {name}, {words.ending(number)}: a newer kvtrail wrote it"), err=True
        )
    if output != STDOUT:
        click.echo(f"{output}: {words.some(len(spans), 'span')}", err=True)
    context.exit(0)


def _stored(store: Path | Address, since: timedelta) -> Callable[[], Iterator[list[Span]]]:
    """Read spans stored since this time. Raises StoreError if they cannot be read."""
    until_ns = time.time_ns()
    since_ns = max(0, until_ns - int(since.total_seconds() * 1e9))
    reader = reader_of(store)
    return lambda: reader.spans(since_ns=since_ns, until_ns=until_ns)
