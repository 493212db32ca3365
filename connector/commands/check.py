"""`kvtrail check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrail.connector.commands.options import CONFIG, vllm_ready
from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.tracer.reports import output_file, terminal

if TYPE_CHECKING:
    from kvtrail.connector.simulate.check.session import Checked


@click.command()
@click.argument("connector")
@CONFIG
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice(tuple(PROFILES)),
    help="Only this kind of workload; may be repeated.",
)
@click.option("--seed", default=0, show_default=True, help="The first seed; the same seed gives the same workloads.")
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after so many seconds. [default: 60, if neither steps nor trials are given]",
)
@click.option("--steps", type=click.IntRange(min=1), help="Stop after so many scheduling steps.")
@click.option("--trials", type=click.IntRange(min=1), help="Stop after so many workloads.")
@click.option("--first", is_flag=True, help="Stop at the first failure.")
@click.option(
    "-o",
    "--output",
    default="kvtrail-check",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.md, junit.xml, and the trace and the test of each failure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for machines.")
@click.pass_context
def check(
    context: click.Context,
    connector: str,
    config: dict[str, Any] | None,
    profiles: tuple[str, ...],
    seed: int,
    seconds: float | None,
    steps: int | None,
    trials: int | None,
    first: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Torture a connector: random but reproducible workloads on vLLM's real scheduler, with kvtrail's rules and vLLM's own
    assertions as the judge. No GPU, no model, no worker: those are fakes, and end transfers early, late, out of order or with
    errors.

    CONNECTOR is a name that vLLM knows (OffloadingConnector), or module:Class for one of your own.

    A failure is shrunk, explained, and written down as a trace and as a test.

    Exit code 0: nothing found; 1: failures; 2: the connector cannot be run.

    Example: kvtrail check OffloadingConnector --time 60

    Example: kvtrail check my_package.my_module:MyConnector --profile retry --seed 7 --config '{"chunk_size": 256}'
    """
    vllm_ready("kvtrail check")
    from kvtrail.connector.simulate.check import report
    from kvtrail.connector.simulate.check.session import NothingRecorded
    from kvtrail.connector.simulate.check.session import check as torture
    from kvtrail.connector.simulate.run import Unbuildable

    if seconds is None and steps is None and trials is None:
        seconds = 60.0
    latest: list[Checked] = []
    interrupted = False
    try:
        with terminal.status() as say:

            def on_progress(checked: Checked, doing: str) -> None:
                latest[:] = [checked]
                of = "" if seconds is None else f" of {seconds:.0f}"
                say(
                    f"{checked.seconds:.0f}{of} s, {checked.steps.total():,} steps, {len(checked.found)} failures; {doing}"
                )

            checked = torture(
                connector,
                config=config,
                profiles=profiles or tuple(PROFILES),
                seed=seed,
                seconds=seconds,
                steps=steps,
                trials=trials,
                stop_at_first=first,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        if not latest:
            raise SystemExit(130) from None
        checked, interrupted = latest[0], True
    except (NothingRecorded, Unbuildable) as error:
        click.echo(f"Error: {connector} cannot be run: {error}", err=True)
        context.exit(2)
    with output_file.or_exit(output):
        written = report.write(checked, output)
    click.echo(json.dumps(report.as_dict(checked), indent=2) if as_json else report.as_text(checked))
    click.echo(f"\nWritten: {', '.join(map(str, written))}", err=True)
    if interrupted:
        click.echo("Interrupted; this is what was seen until then.", err=True)
        context.exit(130)
    context.exit(1 if checked.found else 0)
