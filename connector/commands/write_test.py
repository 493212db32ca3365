"""`kvtrail test`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrail.connector.commands.needs import as_json_object, vllm_ready
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.replay.history import load
from kvtrail.tracer.reports import output_file, terminal

if TYPE_CHECKING:
    from kvtrail.connector.simulate.scenario import Scenario


@click.command("test")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The pytest file to write; - is the standard output.",
)
@click.option("--force", is_flag=True, help="Write over an output file that is there already.")
@click.option(
    "--connector",
    metavar="CONNECTOR",
    help="The faulty connector: a name that vLLM knows, or module:Class. [default: as recorded]",
)
@click.option(
    "--config",
    callback=as_json_object,
    metavar="JSON",
    help="Its kv_connector_extra_config. [default: the recorded numbers]",
)
@click.option("--recorder", metavar="ID", help="The recorder, or its engine, where the trace is of several.")
@click.option("--rule", metavar="RULE", help="The fault to keep. [default: the first recorded one that appears again]")
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
    """Turn a recorded fault into a pytest file that stands alone: it fails with the faulty connector, and passes with a
    mended one.

    The recording is driven again on vLLM's real scheduler, and made as small as it can be while it still fails.

    Exit code 0: written; 1: the fault does not appear again; 2: the trace or the connector cannot be used.

    Example: kvtrail test trace.jsonl -o test_stale_lookup.py

    Example: kvtrail test trace.jsonl --connector my_package.my_module:MyConnector -o test_it.py
    """
    output_file.check(output, sources=traces, force=force)
    vllm_ready("kvtrail test")
    from kvtrail.connector.simulate.redrive.workload import NotDrivable
    from kvtrail.connector.simulate.regression import DoesNotAppear, regression
    from kvtrail.connector.simulate.run import Unbuildable

    try:
        with terminal.progress(traces) as on_bytes:
            history = load(traces, on_bytes=on_bytes)
        with _progress() as on_try:
            made = regression(history, connector=connector, config=config, recorder=recorder, rule=rule, on_try=on_try)
        with output_file.opened(output) as file:
            file.write(made.source)
    except DoesNotAppear as error:
        click.echo(f"{error}.", err=True)
        context.exit(1)
    except (UnusableTrace, NotDrivable, Unbuildable) as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(2)
    except OSError as error:
        click.echo(f"Error: {output}: {error.strerror or error}", err=True)
        context.exit(2)
    click.echo(
        f"{made.failure.id}\n  {made.failure.text}\n{output}: {len(made.scenario.arrivals)} of"
        f" {len(made.original.arrivals)} requests. Run it with: pytest {output}",
        err=True,
    )


@contextmanager
def _progress() -> Iterator[Callable[[Scenario], None]]:
    """How small it has become, where somebody watches."""
    if not sys.stderr.isatty():
        yield lambda smallest: None
        return
    try:
        yield lambda smallest: click.echo(f"\rmaking it small: {len(smallest.arrivals)} requests ", nl=False, err=True)
    finally:
        click.echo(err=True)
