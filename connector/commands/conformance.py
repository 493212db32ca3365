"""`kvtrail conformance`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.options import CONFIG, vllm_ready
from kvtrail.connector.commands.sessions import end, own_folder, runnable, watched
from kvtrail.tracer.commands.options import INCONCLUSIVE
from kvtrail.tracer.reports import output_file

LEVELS = ("core", "extended", "all")
"""As `suite.asked_of` takes them, without importing vLLM for `--help`."""


@click.command()
@click.argument("connector")
@CONFIG
@click.option(
    "--level",
    default="core",
    show_default=True,
    type=click.Choice(LEVELS),
    help="core: what every connector must do; extended: what follows from its features; all: both.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Stop after this many scheduling steps. [default: 20000]",
)
@click.option("--seed", default=0, show_default=True, help="The first seed; the same seed gives the same workloads.")
@click.option(
    "--known",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="report.json of an earlier session, such as the one of another version: a failure that its small workload shows as"
    " well is not shrunk again. May be repeated.",
)
@click.option(
    "-o",
    "--out",
    default="kvtrail-conformance",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.json, index.html, and the trace and the test of each failure. If it has the report of an earlier"
    " session, a number is added to its name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, for machines.")
@click.pass_context
def conformance(
    context: click.Context,
    connector: str,
    config: dict[str, Any] | None,
    level: str,
    steps: int | None,
    seed: int,
    known: tuple[Path, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Test a connector against each requirement of vLLM's connector interface: it passes, fails, or was not put to the
    test. Workloads run on vLLM's real scheduler, as in `kvtrail check`: no GPU, no model, no network.

    CONNECTOR is a name that vLLM knows (OffloadingConnector), or module:Class for one of your own.

    A failure is shrunk, explained, and written down as a trace and as a test. What was not exercised is listed with the
    reason, before it is said that all is well.

    Exit code 0: passed; 1: failed; 2: the connector cannot be run; 3: nothing failed, but inconclusive: too little of
    core was exercised.

    Example: kvtrail conformance OffloadingConnector

    Example: kvtrail conformance my_module:Mine --level all --out report
    """
    vllm_ready("kvtrail conformance")
    from kvtrail.connector.simulate.check.report import as_json as as_document
    from kvtrail.connector.simulate.conformance import report, suite, text

    try:
        small = report.known_from(json.loads(path.read_text(encoding="utf-8")) for path in known)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--known") from wrong
    with own_folder(out) as folder:
        with runnable(context, connector):
            asked = suite.asked_of(connector, config=config, level=level, steps=steps, seed=seed)
            checked, interrupted = watched(
                lambda on_progress: suite.run(asked, known=small, on_progress=on_progress), steps=asked.steps
            )
        data = report.as_dict(asked, checked)
        with output_file.or_exit(folder):
            written = report.write(checked, data, folder)
    click.echo(as_document(data) if as_json else text.as_text(data))
    code = {"passed": 0, "failed": 1, "inconclusive": INCONCLUSIVE}[data["verdict"]]
    end(context, written, interrupted=interrupted, code=code)
