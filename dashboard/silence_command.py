"""`kvtrail silence`."""

from __future__ import annotations

import getpass
import time
from datetime import timedelta
from pathlib import Path

import click

from kvtrail.dashboard.asking import asking, tracer_options
from kvtrail.tracer.commands.options import Duration, known_rule

ACTIONS = ("list", "add", "expire")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have no name
        return ""


@click.command()
@click.argument("action", type=click.Choice(ACTIONS), metavar="|".join(ACTIONS))
@click.argument("silence_id", required=False, metavar="[ID]")
@click.option("--rule", callback=known_rule, help="Findings of this rule.")
@click.option("--engine", default="", help="Findings of the engine with this id or display name.")
@click.option("--connector", default="", help="Findings of this connector.")
@click.option("--vllm-version", default="", help="Findings of engines that report this version of vLLM.")
@click.option("--kvtrail-version", default="", help="Findings of engines with a recorder of this version.")
@click.option("--for", "lasts", type=Duration(), help="How long it lasts, such as 8h or 7d.")
@click.option("--until-ended", is_flag=True, help="It lasts until somebody ends it.")
@click.option("--why", default="", help="Why these findings are known: the issue, and what fixes it.")
@click.option("--by", default=_user, show_default="your user name", help="Who silences them.")
@tracer_options("a token of the role `change` (for list, `read`)")
def silence(
    action: str,
    silence_id: str | None,
    lasts: timedelta | None,
    until_ended: bool,
    why: str,
    by: str,
    tracer: str,
    token_file: Path | None,
    tracer_ca: Path | None,
    **given: str | None,
) -> None:
    """Silence findings that are known, list silences, or end one.

    A silence covers the findings that meet all of its matchers (--rule, --engine, --connector, --vllm-version,
    --kvtrail-version), for as long as it lasts. They stay on every page, marked; the first page counts them apart, and the
    alerts leave them out. expire ends the silence ID now; it stays listed.

    Exit code 0: done; 1: the tracer does not answer, or refuses; 2: an option is missing or wrong.

    Example: kvtrail silence add --rule full-hit --for 7d --why 'issue 2158'

    Example: kvtrail silence list
    """
    from kvtrail.dashboard.content import silences

    matchers = {name: value or "" for name, value in given.items()}
    if (silence_id is None) == (action == "expire"):
        raise click.UsageError("expire takes the ID of a silence" if silence_id is None else f"{action} takes no ID")
    if action == "add":
        if (lasts is None) != until_ended:
            raise click.UsageError("say how long it lasts: either --for, such as --for 7d, or --until-ended")
        if not any(matchers.values()):
            raise click.UsageError(
                "say what it covers: --rule, --engine, --connector, --vllm-version or --kvtrail-version"
            )
        if not why.strip():
            raise click.UsageError("say why these findings are known: --why")
        if not by.strip():
            raise click.UsageError("say who silences them: --by")
    with asking(tracer, token_file, tracer_ca) as client:
        if action == "add":
            asked = silences.asked(matchers, lasts=lasts, why=why, by=by, now_ns=time.time_ns())
            shown = [client.silence(asked)]
        elif silence_id is not None:
            shown = [client.end_silence(silence_id)]
        else:
            shown = client.silences()
    for line in silences.lines(shown) or ["There are no silences."]:
        click.echo(line)
