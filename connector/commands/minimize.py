"""`kvtrail minimize`: reduces a trace with a drift to one that fits into an issue, or to a pytest file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.options import CONFIG, RECORDER, vllm_ready
from kvtrail.tracer.commands.options import FORCE, TRACES, known_rule, output_option
from kvtrail.tracer.history import minimize as minimizing
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.history.minimize import Minimized, NoFinding
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.reports import output_file, terminal
from kvtrail.tracer.reports.findings import finding_text
from kvtrail.tracer.reports.output_file import STDOUT
from kvtrail.tracer.reports.steps import left_out

MAX_NAMED = 10
"""Findings that are listed; the rest are counted."""


@click.command()
@TRACES
@output_option("Trace file to write, OTLP JSON Lines, an event a line; - is the standard output.")
@click.option(
    "--pytest",
    "test",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="KVTRAIL_MINIMIZE_PYTEST",
    help="Instead of a trace, write a self-contained pytest file: it fails with the faulty connector, and passes with a fixed"
    " one. The recording is driven again on vLLM's real scheduler, and shrunk as far as it still fails.",
)
@click.option("--rule", callback=known_rule, metavar="RULE", help="Keep a finding of this rule.")
@click.option("--request", metavar="ID", help="Keep a finding of this request; the engine's id or the caller's.")
@click.option("--finding", metavar="ID", help="Keep this finding; its id, or the beginning of it.")
@click.option(
    "--connector",
    metavar="CONNECTOR",
    help="With --pytest: the faulty connector, a name that vLLM knows, or module:Class. [default: as recorded]",
)
@CONFIG
@RECORDER
@FORCE
@click.pass_context
def minimize(
    context: click.Context,
    traces: tuple[Path, ...],
    output: Path | None,
    test: Path | None,
    rule: str | None,
    request: str | None,
    finding: str | None,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    force: bool,
) -> None:
    """Reduce a trace to the fewest requests and events that still show its finding, for a report; or, with
    --pytest, to a test of the connector.

    TRACE is what `kvtrail audit` reads; several are one history. Of several findings the worst is kept, and of those the
    earliest, unless one is asked for. The result is not a recording but a part of one.

    Exit code 0: a smaller trace, or the test, was written; 1: there is no such finding, or it does not appear again; 2: a
    file or the connector cannot be used.

    Example: kvtrail minimize trace.jsonl -o small.jsonl

    Example: kvtrail minimize trace.jsonl --rule stale-lookup -o small.jsonl

    Example: kvtrail minimize trace.jsonl --pytest test_it.py
    """
    if (output is None) == (test is None):
        raise click.UsageError("say where to write: a trace with -o, or a test with --pytest")
    if test is not None:
        if request is not None or finding is not None:
            raise click.UsageError("--request and --finding keep a part of the trace; with --pytest, name a --rule")
        output_file.check(test, sources=traces, force=force)
        _write_test(context, traces, test, rule, connector=connector, config=config, recorder=recorder)
        return
    if connector is not None or config is not None or recorder is not None:
        raise click.UsageError("--connector, --config and --recorder go with --pytest")
    assert output is not None
    output_file.check(output, force=force, sources=traces)
    aside = output == STDOUT  # the standard output belongs to the trace
    with output_file.or_exit(output, doing="minimizing"):
        with terminal.reading(traces):
            history = load(traces)
        try:
            with terminal.status() as say:
                result = minimizing.minimize(
                    history,
                    finding=finding,
                    rule=rule,
                    request=request,
                    on_progress=lambda left, tries: say(
                        f"{words.some(left, 'event')} to judge, {words.count(tries)} histories judged"
                    ),
                )
        except NoFinding as nothing:
            click.echo("\n".join([f"Error: {nothing}.", *_named(nothing.found)]), err=True)
            context.exit(1)
        with output_file.opened(output) as file:
            file.writelines(f"{otlp_json.spans_to_json_line([span])}\n" for _, span in result.history.moments)
    columns = None if aside else terminal.width()
    lines = [
        line for text in (*_summary(result, output), *_left_out(history, result)) for line in _wrapped(text, columns)
    ]
    text = "\n".join([finding_text(result.finding, columns=columns), "", *lines])
    click.echo(text, err=True) if aside else terminal.echo(text)


def _write_test(
    context: click.Context,
    traces: tuple[Path, ...],
    output: Path,
    rule: str | None,
    *,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
) -> None:
    """Write the pytest file. The trace of a session of `check` has one beside it: its workload was shrunk already."""
    vllm_ready("kvtrail minimize --pytest")
    from kvtrail.connector.simulate.check.report import test_beside
    from kvtrail.connector.simulate.redrive.workload import NotDrivable
    from kvtrail.connector.simulate.regression import DoesNotAppear, regression
    from kvtrail.connector.simulate.run import Unbuildable

    if len(traces) == 1 and not (connector or config or rule) and (beside := test_beside(traces[0])) is not None:
        with output_file.or_exit(output), output_file.opened(output) as file:
            file.write(beside.read_text(encoding="utf-8"))
        click.echo(
            f"{output}: the test that was written together with this trace. Run it with: pytest {output}", err=True
        )
        return
    with output_file.or_exit(output, NotDrivable, Unbuildable):
        with terminal.reading(traces):
            history = load(traces)
        try:
            with terminal.status() as say:
                made = regression(
                    history,
                    connector=connector,
                    config=config,
                    recorder=recorder,
                    rule=rule,
                    on_try=lambda smallest: say(f"shrinking: {len(smallest.arrivals)} requests"),
                )
        except DoesNotAppear as error:
            click.echo(f"{error}.", err=True)
            context.exit(1)
        with output_file.opened(output) as file:
            file.write(made.source)
    click.echo(
        f"{made.failure.id}\n  {made.failure.text}\n{output}: {len(made.scenario.arrivals)} of"
        f" {len(made.original.arrivals)} requests. Run it with: pytest {output}",
        err=True,
    )


def _wrapped(line: str, columns: int | None) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return terminal.wrapped(line.lstrip(), columns, first=indent, rest=indent + "  ")


def _summary(result: Minimized, output: Path) -> Iterator[str]:
    """The lines about the kept part of the recording."""
    where = "standard output" if output == STDOUT else str(output)
    yield (
        f"{where}: {words.count(result.events)} of {words.some(result.events_before, 'event')},"
        f" {words.count(result.requests)} of {words.some(result.requests_before, 'request')};"
        f" found by judging {words.some(result.tries, 'candidate')}."
    )
    yield "It is a part of a recording, renumbered; do not judge it together with the whole."
    if output != STDOUT:
        yield f"Judge it with: kvtrail audit {output}"


def _left_out(history: History, result: Minimized) -> Iterator[str]:
    """The lines about other parts that the smaller trace lacks, besides events that the finding does not need."""
    yield from left_out(history)
    if result.lost:
        yield f"It does not show {words.some(len(result.lost), 'other finding')}; --finding ID keeps one of them instead:"
        yield from _named(result.lost)


def _named(findings: Sequence[Finding]) -> Iterator[str]:
    """Findings by their ids, a line each."""
    for each in findings[:MAX_NAMED]:
        about = f"request {each.request}, {words.run(each.epoch)}" if each.request else f"engine {each.engine}"
        yield terminal.plain(f"  {each.id}  {each.rule} [could: {each.severity}]  {about}")
    if (more := len(findings) - MAX_NAMED) > 0:
        yield f"  and {words.count(more)} more; kvtrail audit --json lists all of them"
