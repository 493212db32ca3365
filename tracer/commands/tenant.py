"""`kvtrail tenant`: the digest by which a tenant is recorded."""

from __future__ import annotations

import sys

import click

from kvtrail.tracer.model.tenants import PLAIN, digest_of


@click.command()
@click.option("--adapter", default="", metavar="NAME", help="The name of the LoRA adapter of its requests.")
@click.option("--no-salt", is_flag=True, help="Its requests have no cache salt: nothing is read.")
def tenant(adapter: str, no_salt: bool) -> None:
    """Print the digest of a tenant, for the file of `kvtrail serve --tenants`. The cache salt of its requests
    (`cache_salt`) is read from standard input, without the end of its line, so that it is in no shell's history.

    Example: kvtrail tenant < salt.txt

    Example: kvtrail tenant --adapter sql-lora --no-salt
    """
    salt = "" if no_salt else sys.stdin.read().removesuffix("\n").removesuffix("\r")
    digest = digest_of(adapter, salt)
    if digest == PLAIN:
        raise click.UsageError("there is neither a salt nor an adapter: such requests are the tenant `plain`")
    click.echo(digest)
