"""`kvtrail check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrail.connector.commands.options import CONFIG, vllm_ready
from kvtrail.connector.commands.sessions import OnProgress, end, own_folder, runnable, watched
from kvtrail.connector.simulate.check.profiles import PAIR_PROFILES, PROFILES
from kvtrail.tracer.commands.options import INCONCLUSIVE
from kvtrail.tracer.reports import output_file

if TYPE_CHECKING:
    from kvtrail.connector.simulate.check.session import Checked


@click.command()
@click.argument("connector")
@CONFIG
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice((*PROFILES, *PAIR_PROFILES)),
    help="Only this kind of workload; may be repeated.",
)
@click.option("--seed", default=0, show_default=True, help="The first seed; the same seed gives the same workloads.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Stop after this many scheduling steps. [default: 20000, if --runs is not given]",
)
@click.option("--runs", type=click.IntRange(min=1), help="Stop after this many workloads.")
@click.option(
    "--fake-workers", is_flag=True, help="Do not run the connector's own workers, even if they would run on this CPU."
)
@click.option("--first", is_flag=True, help="Stop at the first failure.")
@click.option(
    "-o",
    "--output",
    default="kvtrail-check",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.json, and the trace and the test of each failure. If it has the report of an earlier session, a"
    " number is added to its name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for machines.")
@click.pass_context
def check(
    context: click.Context,
    connector: str,
    config: dict[str, Any] | None,
    profiles: tuple[str, ...],
    seed: int,
    steps: int | None,
    runs: int | None,
    fake_workers: bool,
    first: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Stress a connector: random but reproducible workloads on vLLM's real scheduler, with kvtrail's rules, vLLM's own
    assertions and what is left in the end as the judge. No GPU and no model: the model is a fake. The connector's own workers
    run if they can on a CPU; else fakes end transfers early, late, out of order or with errors.

    CONNECTOR is a name that vLLM knows (OffloadingConnector), or module:Class for one of your own.

    A failure is shrunk, explained, and written down as a trace and as a test. One that does not always appear is called
    flaky.

    Exit code 0: nothing found; 1: failures; 2: the connector cannot be run; 3: nothing found, but inconclusive: no lookup
    hit, profiles not reached, too few steps or hits, or a probe that failed.

    Example: kvtrail check OffloadingConnector

    Example: kvtrail check my_module:Mine --config '{"chunk_size": 256}'

    Example: kvtrail check my_module:Mine --profile retry --seed 7
    """
    vllm_ready("kvtrail check")
    from kvtrail.connector.simulate.check import report
    from kvtrail.connector.simulate.check.session import STEPS
    from kvtrail.connector.simulate.check.session import check as torture

    if steps is None and runs is None:
        steps = STEPS

    def session(on_progress: OnProgress) -> Checked:
        return torture(
            connector,
            config=config,
            profiles=profiles or None,
            seed=seed,
            steps=steps,
            runs=runs,
            fake_workers=fake_workers,
            stop_at_first=first,
            on_progress=on_progress,
        )

    with own_folder(output) as folder:
        with runnable(context, connector):
            checked, interrupted = watched(session, steps=steps)
        with output_file.or_exit(folder):
            written = report.write(checked, folder)
    click.echo(json.dumps(report.as_dict(checked), indent=2) if as_json else report.as_text(checked))
    code = 1 if checked.found else INCONCLUSIVE if checked.inconclusive else 0
    end(context, written, interrupted=interrupted, code=code)
