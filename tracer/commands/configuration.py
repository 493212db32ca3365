"""The configuration file: YAML, a section for each command, with the options' names as keys.

    serve:
      store: /var/lib/kvtrail/kvtrail.db
      retain-hours: 24

The command line has precedence, then the environment, then the file, then the default. Values are validated in the same way
as on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

VARIABLE = "KVTRAIL_CONFIG"
"""Names the file; so does `kvtrail --config`."""
LASTING = ("serve", "dashboard")
"""The commands that run until they are stopped."""
_SOURCES = {
    ParameterSource.COMMANDLINE: "the command line",
    ParameterSource.ENVIRONMENT: "the environment",
    ParameterSource.DEFAULT_MAP: "the file",
}


def read(path: Path, commands: Collection[str]) -> dict[str, dict[str, Any]]:
    """The sections of a file, with the names of parameters as keys.

    Raises:
        click.UsageError: it cannot be read, or has another shape than a section for each of `commands`.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read the configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise click.UsageError(f"the configuration {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise click.UsageError(f"the configuration {path} must have a section for each command, such as `serve:`")
    for name, section in data.items():
        if name not in commands:
            raise click.UsageError(f"{path}: there is no command {name!r}; known: {', '.join(sorted(commands))}")
        if not isinstance(section, dict):
            raise click.UsageError(f"{path}: {name} must have options with values, such as `{name}: {{key: value}}`")
    return {
        name: {str(key).replace("-", "_"): value for key, value in section.items()} for name, section in data.items()
    }


def check_section(context: click.Context, command: click.Command) -> None:
    """Raises click.UsageError if the section of a command, in the file that `context` of `kvtrail` itself was given, names an
    option that it does not have."""
    known = {str(each.name) for each in command.params if isinstance(each, click.Option)}
    for key in (context.default_map or {}).get(str(command.name), {}):
        if key not in known:
            options, path = ", ".join(sorted(option.replace("_", "-") for option in known)), context.params["config"]
            raise click.UsageError(f"{path}: {command.name} has no option {key.replace('_', '-')!r}; known: {options}")


def naming(path: Path, error: click.BadParameter) -> click.BadParameter:
    """The error, with the name of the file if the invalid value is from it."""
    context, parameter = error.ctx, error.param
    if context is None or parameter is None or parameter.name is None:
        return error
    if context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT_MAP:
        return error
    return click.BadParameter(f"{error.message.rstrip('.')} (in {path}).", context, parameter, error.param_hint)


@click.command()
@click.argument("name", metavar="COMMAND", type=click.Choice(LASTING), default="serve")
@click.pass_context
def config(context: click.Context, name: str) -> None:
    """Show the options that `serve`, or `dashboard`, would run with, and where each of them comes from. The output is
    YAML, and can be used as the configuration file.

    Example: kvtrail config serve

    Example: kvtrail --config /etc/kvtrail.yaml config dashboard
    """
    parent = context.parent
    command = parent.command.get_command(parent, name) if parent and isinstance(parent.command, click.Group) else None
    if parent is None or command is None:  # always present
        return
    check_section(parent, command)
    with command.make_context(name, [], parent=parent) as asked:
        click.echo(f"{name}:")
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name in asked.params:
                click.echo(_line(asked, parameter.name))


def _line(context: click.Context, name: str) -> str:
    """An option and its value: JSON, which is YAML, too."""
    value, source = context.params[name], context.get_parameter_source(name)
    text = f"  {name.replace('_', '-')}: {json.dumps(value, default=str)}"
    return text + (f"  # from {_SOURCES[source]}" if source in _SOURCES else "")
