"""The error of a command that cannot run with its options or in its environment."""

from __future__ import annotations

import click


class Refused(click.ClickException):
    """Prints a message to standard error and exits with code 2. Exit code 1 means that something was found."""

    exit_code = 2
