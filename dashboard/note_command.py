"""`kvtrail note`: what somebody did, at its moment on every chart."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from kvtrail.dashboard.asking import asking, tracer_options
from kvtrail.tracer.commands.options import Duration


class At(click.ParamType[datetime]):
    """A moment as ISO 8601 has it; UTC, where it names no zone."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-24T14:59", parameter, context)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.command()
@click.argument("text")
@click.option("--at", type=At(), help="When it happened, such as 2026-11-24T14:59, in UTC; now by default.")
@click.option("--ago", type=Duration(), help="How long ago it happened, such as 10m, in place of --at.")
@click.option("--engine", default="", help="The engine that it is about, by its id or name; all of them by default.")
@tracer_options("a token of the role `change`")
def note(
    text: str,
    at: datetime | None,
    ago: timedelta | None,
    engine: str,
    tracer: str,
    token_file: Path | None,
    tracer_ca: Path | None,
) -> None:
    """Write a note, which all charts over time show at its moment: a deploy, a load test, a change of a router.

    Example: kvtrail note "load test began" --ago 5m
    """
    if at is not None and ago is not None:
        raise click.UsageError("--at and --ago say the same: give one of them")
    body: dict[str, Any] = {"text": text, "engine": engine}
    if at is not None:
        body["at_ns"] = round(at.timestamp()) * 10**9
    elif ago is not None:
        body["at_ns"] = time.time_ns() - round(ago.total_seconds()) * 10**9
    with asking(tracer, token_file, tracer_ca) as client:
        written = client.note(body)
    when = datetime.fromtimestamp(written["at_ns"] / 1e9, UTC)
    click.echo(f"noted at {when:%Y-%m-%d %H:%M:%S} UTC")
