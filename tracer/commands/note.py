"""`kvtrail note`: what somebody did, at its moment on every chart."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from kvtrail.tracer.commands.options import Duration

ANSWERS_WITHIN_S = 5.0
CREATED = 201


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
@click.option(
    "--tracer", default="http://127.0.0.1:4318", show_default=True, metavar="URL", help="The tracer's HTTP address."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with a token for the role `change` in its first line (`kvtrail serve --token-file`).",
)
@click.option(
    "--tracer-ca",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="PEM file of the CA of the tracer's certificate, if the system does not trust it.",
)
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
    import ssl

    import httpx

    if at is not None and ago is not None:
        raise click.UsageError("--at and --ago say the same: give one of them")
    body: dict[str, Any] = {"text": text, "engine": engine}
    if at is not None:
        body["at_ns"] = round(at.timestamp()) * 10**9
    elif ago is not None:
        body["at_ns"] = time.time_ns() - round(ago.total_seconds()) * 10**9
    headers = {}
    try:
        if token_file is not None:
            headers["authorization"] = f"Bearer {token_file.read_text().strip().partition(chr(10))[0]}"
        verify = True if tracer_ca is None else ssl.create_default_context(cafile=tracer_ca)
        address = f"{tracer.rstrip('/')}/api/markers"
        # The tracer is nearby: ignore a proxy for the internet.
        with httpx.Client(verify=verify, trust_env=False, timeout=ANSWERS_WITHIN_S) as client:
            answer = client.post(address, json=body, headers=headers)
    except (OSError, ValueError) as error:  # a file that cannot be read, or is no certificate
        raise click.ClickException(f"the note is not written: {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(
            f"the note is not written: the tracer at {tracer} does not answer: {error}"
        ) from error
    if answer.status_code != CREATED:
        raise click.ClickException(f"the note is not written: {_reason(answer.text, answer.status_code)}")
    when = datetime.fromtimestamp(answer.json()["at_ns"] / 1e9, UTC)
    click.echo(f"noted at {when:%Y-%m-%d %H:%M:%S} UTC")


def _reason(text: str, code: int) -> str:
    """The reason in an answer of the api."""
    import json

    try:
        detail = json.loads(text)["detail"]
    except (ValueError, TypeError, KeyError):
        return f"the server answers with {code}, and is no tracer of this version"
    return detail if isinstance(detail, str) else f"the tracer answers with {code}: {json.dumps(detail)}"
