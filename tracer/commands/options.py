"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvtrail.tracer.detect.rules import Rule, all_rules

TRACES = click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
INCONCLUSIVE = 3
"""Exit code: nothing was found, and that proves nothing."""
FORCE = click.option("--force", is_flag=True, help="Overwrite the output file if it exists.")


def output_option(text: str, *, required: bool = True) -> Callable[[Any], Any]:
    """The option for the file to write, `-` for the standard output; see `reports.output_file`."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", required=required, type=path, help=text)


def rule_named(name: str) -> Rule:
    """The rule with this id.

    Raises:
        click.BadParameter: there is none; the text lists the rules.
    """
    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        raise click.BadParameter(f"there is no rule {name!r}. The rules are: {', '.join(known)}")
    return known[name]


def known_rule(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Callback of an option that names a rule: the name, once it is known to be one."""
    return None if name is None else rule_named(name).id
