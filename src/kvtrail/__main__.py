"""`kvtrail`: the table of commands. A command's module is imported only when the command is called.

The package without its extras can record in an engine. Commands need the extras, and some need vLLM; a command that lacks
them says what to install.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from kvtrail import __version__
from kvtrail.refused import Refused
from kvtrail.tracer.commands import configuration
from kvtrail.tracer.model.nearest import did_you_mean

GROUPS = {
    "To try it": {
        "demo": (
            "kvtrail.connector.commands.demo:demo",
            "Run a real vLLM engine with the OffloadConnector, traced live.",
        ),
    },
    "Beside running engines": {
        "serve": (
            "kvtrail.tracer.commands.serve:serve",
            "Run the sidecar: receive spans, judge them, serve the API and the metrics.",
        ),
        "dashboard": (
            "kvtrail.dashboard.command:dashboard",
            "Show requests, findings and savings in the browser, live.",
        ),
        "store": (
            "kvtrail.tracer.commands.store:store",
            "Verify a sidecar's store, or rebuild it from its log.",
        ),
        "config": (
            "kvtrail.tracer.commands.configuration:config",
            "Show the options of a command, and where they come from.",
        ),
    },
    "With a recording": {
        "audit": (
            "kvtrail.tracer.commands.audit:audit",
            "Judge trace files and logs, and explain every finding; or sum up savings.",
        ),
        "replay": (
            "kvtrail.connector.commands.replay:replay",
            "Print a recorded history step by step; or drive its load again.",
        ),
        "minimize": (
            "kvtrail.connector.commands.minimize:minimize",
            "Reduce a trace to the smallest one that still shows a finding, or to a pytest file.",
        ),
    },
    "With a connector": {
        "check": (
            "kvtrail.connector.commands.check:check",
            "Stress-test a connector on vLLM's scheduler.",
        ),
        "conformance": (
            "kvtrail.connector.commands.conformance:conformance",
            "Test a connector against vLLM's connector interface.",
        ),
    },
}
"""The commands by their group in the help, each with its import path and its help text."""
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}
EXTRAS = {"dashboard": "dashboard", "demo": "tracer,dashboard"}
"""The extras that a command needs; all other commands need `tracer`."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells. click's default is 1, which means drift here."""
_OF_VLLM = frozenset({"vllm", "torch", "numpy", "zmq"})
"""Packages that come with vLLM, and with none of the extras."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is called, and says what to install if something is missing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if not ctx.resilient_parsing:
                ctx.fail(f"There is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}")
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command: Any = getattr(importlib.import_module(module), attribute)
        except ImportError as missing:
            raise _needs(cmd_name, missing) from missing
        return command  # type: ignore[no-any-return]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:  # commands import some modules only when they need them
            if (missing.name or "").partition(".")[0] == "kvtrail":
                raise
            raise _needs(ctx.invoked_subcommand or "", missing) from missing
        except KeyboardInterrupt:
            click.echo(err=True)  # ends the line on which the terminal shows ^C
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.BadParameter as error:
            if (path := ctx.params.get("config")) is not None:
                raise configuration.naming(path, error) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


def _needs(command: str, missing: ImportError) -> Refused:
    """The error that says what a command lacks, and how to install it."""
    if (missing.name or "").partition(".")[0] in _OF_VLLM:
        return Refused(f"`kvtrail {command}` runs vLLM here: install kvtrail where vLLM is installed")
    extras = EXTRAS.get(command, "tracer")
    return Refused(f"`kvtrail {command}` needs {missing.name or missing}: pip install 'kvtrail[{extras}]'")


@click.group(cls=LazyGroup, context_settings={"auto_envvar_prefix": "KVTRAIL", "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvtrail")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=configuration.VARIABLE,
    help=f"YAML file with options, in a section for each command.  [env: {configuration.VARIABLE}]",
)
@click.pass_context
def main(context: click.Context, config: Path | None) -> None:
    """An audit trail for KV-cache offload in vLLM.

    Every option can also be set in the environment, as KVTRAIL_<COMMAND>_<OPTION>, or in the file of --config.

    Example: kvtrail serve --store /var/lib/kvtrail/kvtrail.db
    """
    if config is not None:
        context.default_map = configuration.read(config, COMMANDS)
        called: Any = main.get_command(context, str(context.invoked_subcommand))  # type: ignore[attr-defined]
        configuration.check_section(context, called)


if __name__ == "__main__":
    main()
