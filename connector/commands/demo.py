"""`kvtrail demo`."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import httpx
from click.core import ParameterSource

from kvtrail.connector.demo.children import ChildDied, Children
from kvtrail.connector.demo.options import HYBRID, OPT, STALE_HANDOFF, Options
from kvtrail.connector.faults import FAULTS
from kvtrail.connector.settings import Guard
from kvtrail.refused import Refused

PORT = click.IntRange(1, 65535)


@click.command()
@click.option("--once", is_flag=True, help="Stop after one round, with exit code 0 if all went as expected.")
@click.option(
    "--pd",
    is_flag=True,
    help="Two engines with vLLM's NixlConnector: one prefills, and hands each request over to the one that decodes.",
)
@click.option(
    "--model",
    type=click.Choice([OPT, HYBRID]),
    default=OPT,
    show_default=True,
    help="The tiny model: an OPT, or a Gemma 3 with two KV cache groups, since half of its layers have a sliding window.",
)
@click.option(
    "--bug",
    type=click.Choice([*FAULTS, STALE_HANDOFF]),
    help="Inject a known bug into the connector: `stale-lookup` kills the engine. With --pd `stale-handoff`: blocks are freed"
    " before they are read.",
)
@click.option(
    "--guard",
    type=click.Choice([Guard.OBSERVE.value, Guard.HEAL.value]),
    default=Guard.OBSERVE.value,
    show_default=True,
    help="What to do with a wrong answer or wrong KV: record it, or heal it, so that vLLM computes the tokens itself.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Store, logs and model of the demo.",
)
@click.option(
    "--grpc-port",
    type=PORT,
    default=4317,
    show_default=True,
    help="The sidecar's port for OTLP over gRPC.",
)
@click.option(
    "--http-port",
    type=PORT,
    default=4318,
    show_default=True,
    help="The sidecar's port for the API and /metrics.",
)
@click.option("--dashboard-port", type=PORT, default=8501, show_default=True, help="The dashboard's port.")
@click.option(
    "--metrics-port",
    type=PORT,
    help="Also serve vLLM's own metrics there, as `vllm serve` does on 8000, for Prometheus.",
)
@click.pass_context
def demo(context: click.Context, /, **options: Any) -> None:
    """Run a real vLLM engine with the OffloadConnector on the CPU, traced live.

    Starts the tracer, the dashboard and the engine, serves requests that share prefixes and preempt each other, prints
    a summary, and continues with little load until Ctrl-C. No GPU and no download of a model is needed. Where a port is
    taken that was not asked for, the next free one is used.

    Example: kvtrail demo

    Example: kvtrail demo --model hybrid

    Example: kvtrail demo --bug stale-lookup

    Example: kvtrail demo --bug stale-lookup --guard heal --once

    Example: kvtrail demo --pd --bug stale-handoff
    """
    if importlib.util.find_spec("vllm") is None:
        raise Refused("the demo runs vLLM, which is not installed here; `make demo` installs it for the CPU")
    from kvtrail.connector.demo import demo as driver  # needs what vLLM brings with it

    _require_what_fits(options)
    for name in ("grpc_port", "http_port", "dashboard_port"):
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            wanted, options[name] = options[name], driver.free_port(options[name])
            if options[name] != wanted:
                click.echo(f"Port {wanted} is taken: the demo uses {options[name]}.")
    children = Children()
    children.stop_at(signal.SIGINT, signal.SIGTERM)  # also where a shell started us with Ctrl-C ignored
    try:
        driver.run(Options(**options), children)
    except Exception as error:
        if not children.stopped:
            if isinstance(error, httpx.HTTPError):
                message = (
                    f"the tracer does not answer ({type(error).__name__}); its log: {options['folder']}/tracer.log"
                )
                raise click.ClickException(message) from error
            if isinstance(error, driver.DemoError | ChildDied | OSError):
                raise click.ClickException(str(error)) from error
            raise
    if children.stopped:
        over = "\r" if sys.stdout.isatty() else ""  # the ^C that the terminal shows
        click.echo(f"{over}Ended; nothing is left running.")
        raise SystemExit(130 if options["once"] else 0)  # without --once, Ctrl-C is how the demo ends


def _require_what_fits(options: Mapping[str, Any]) -> None:
    """Raises Refused where options exclude each other, or two engines cannot hand over here."""
    if not options["pd"]:
        if options["bug"] == STALE_HANDOFF:
            raise Refused(f"the bug {options['bug']!r} needs two engines: add --pd")
        return
    if options["bug"] not in (None, STALE_HANDOFF):
        raise Refused(f"--pd has the bug {STALE_HANDOFF!r} only")
    if options["model"] != OPT or options["metrics_port"]:
        raise Refused("--pd runs the tiny OPT, and serves no metrics of vLLM's")
    if importlib.util.find_spec("nixl") is None:
        raise Refused(
            "--pd needs NIXL, which is not installed here; `make demo ARGS=--pd` installs it, as does"
            " `pip install --no-deps -r constraints-pd.txt`"
        )
