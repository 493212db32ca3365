"""`kvtrail test`: a recorded fault becomes a pytest file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.options import CONFIG, RECORDER, vllm_ready
from kvtrail.tracer.commands.options import FORCE, TRACES, output_option
from kvtrail.tracer.history.history import load
from kvtrail.tracer.reports import output_file, terminal


@click.command("test")
@TRACES
@output_option("The pytest file to write; - is the standard output.")
@FORCE
@click.option(
    "--connector",
    metavar="CONNECTOR",
    help="The faulty connector: a name that vLLM knows, or module:Class. [default: as recorded]",
)
@CONFIG
@RECORDER
@click.option("--rule", metavar="RULE", help="The fault to show. [default: the first recorded one that appears again]")
@click.pass_context
def write_test(
    context: click.Context,
    traces: tuple[Path, ...],
    output: Path,
    force: bool,
    connector: str | None,
    config: dict[str, Any] | None,
    recorder: str | None,
    rule: str | None,
) -> None:
    """Turn a recorded fault into a self-contained pytest file: it fails with the faulty connector, and passes with a fixed
    one.

    The recording is driven again on vLLM's real scheduler, and shrunk as far as it still fails.

    Exit code 0: written; 1: the fault does not appear again; 2: the trace or the connector cannot be used.

    Example: kvtrail test trace.jsonl -o test_stale_lookup.py

    Example: kvtrail test trace.jsonl --connector my_module:Mine -o test_it.py
    """
    output_file.check(output, sources=traces, force=force)
    vllm_ready("kvtrail test")
    from kvtrail.connector.simulate.redrive.workload import NotDrivable
    from kvtrail.connector.simulate.regression import DoesNotAppear, regression
    from kvtrail.connector.simulate.run import Unbuildable

    with output_file.or_exit(output, NotDrivable, Unbuildable):
        with terminal.progress(traces) as on_bytes:
            history = load(traces, on_bytes=on_bytes)
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
