"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import click

from kvtrail.tracer.model.nearest import did_you_mean
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.old_names import current
from kvtrail.tracer.serve.tokens import TokenFile

TRACES = click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
INCONCLUSIVE = 3
"""Exit code: nothing was found, but the evidence is insufficient."""
FORCE = click.option("--force", is_flag=True, help="Overwrite the output file if it exists.")


class Store(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter here
    """A store: the path of a SQLite file, or the address of a ClickHouse, shown without its password."""

    name = "store"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        from kvtrail.tracer.store.clickhouse.connection import Address

        if not isinstance(value, str):
            return value
        try:
            return Address.of(value) if Address.is_one(value) else Path(value)
        except ValueError as error:
            self.fail(f"{error}", parameter, context)


class TokenFiles(click.ParamType):  # type: ignore[type-arg]
    """A file of tokens, and the role that they grant: `FILE` or `ROLE=FILE`."""

    name = "[role=]file"
    envvar_list_splitter = os.pathsep  # as for paths: a path with a space stays one value

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if isinstance(value, TokenFile):
            return value
        try:
            return TokenFile.of(str(value))
        except ValueError as error:
            self.fail(f"{error}", parameter, context)


class Several(click.Option):
    """A `multiple` option for which a file of `kvtrail --config` may name a single value without a list."""

    def type_cast_value(self, context: click.Context, value: Any) -> Any:
        return super().type_cast_value(context, [value] if isinstance(value, str) else value)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds, minutes, hours or days: `90m`."""

    name = "duration"
    _UNITS: ClassVar = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        number, unit = value[:-1], self._UNITS.get(value[-1:])
        if unit is None or not number.isdecimal() or len(number) > 6:
            self.fail(f"{value!r} is not a number with s, m, h or d, such as 24h", parameter, context)
        return timedelta(**{unit: int(number)})


def output_option(text: str) -> Callable[[Any], Any]:
    """The option for the file to write, `-` for the standard output; see `reports.output_file`."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", type=path, help=text)


def rule_named(name: str) -> str:
    """The id of the rule with this current or former name.

    Raises:
        click.BadParameter: there is none; the text has the nearest names.
    """
    rule, known = current(name), pages.files()
    if rule not in known:
        meant = did_you_mean(name, known) or "; docs/rules.md lists them"
        raise click.BadParameter(f"there is no rule {name!r}{meant}")
    return rule


def known_rule(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Callback of an option that names a rule: validates it and returns its id."""
    return None if name is None else rule_named(name)
