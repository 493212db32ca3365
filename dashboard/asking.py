"""How a command asks a tracer: the options that name it, and what is said when it does not answer or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvtrail.dashboard.client import Tracer

DEFAULT_URL = "http://127.0.0.1:4318"
TRACER_VARIABLE = "KVTRAIL_DASHBOARD_TRACER"
"""Remembers the tracer's address, and passes it to the pages, which run in Streamlit's process."""
FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
"""A file that exists."""


def tracer_options(tokens: str) -> Callable[[Any], Any]:
    """The options `--tracer`, `--token-file` and `--tracer-ca`; `tokens` says which token the file holds."""
    options = (
        click.option(
            "--tracer",
            default=DEFAULT_URL,
            show_default=True,
            envvar=TRACER_VARIABLE,
            show_envvar=True,
            metavar="URL",
            help="The tracer's HTTP address.",
        ),
        click.option(
            "--token-file", type=FILE, help=f"File with {tokens} in its first line (`kvtrail serve --token-file`)."
        ),
        click.option(
            "--tracer-ca",
            type=FILE,
            help="PEM file of the CA of the tracer's certificate, if the system does not trust it.",
        ),
    )

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@contextmanager
def asking(url: str, token_file: Path | None, ca: Path | None) -> Iterator[Tracer]:
    """A client of this tracer.

    Raises:
        click.ClickException: it does not answer, refuses, or cannot be asked.
    """
    import httpx

    from kvtrail.dashboard.client import Tracer, TracerAway, TracerRefused

    try:
        client = Tracer(url, token_file=token_file, ca=ca)
    except (OSError, ValueError, httpx.InvalidURL) as error:  # no certificate, or no address
        raise click.ClickException(f"the tracer at {url} cannot be asked: {error}") from error
    try:
        yield client
    except (TracerAway, TracerRefused) as error:
        raise click.ClickException(str(error)) from error
    finally:
        client.close()
