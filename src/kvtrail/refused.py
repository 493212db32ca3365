"""How a command says that it cannot run as it was called, or where it was called."""

from __future__ import annotations

import click


class Refused(click.ClickException):
    """A sentence on standard error, and exit code 2: code 1 says that something was found."""

    exit_code = 2
