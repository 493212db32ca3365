"""`kvtrail store`: maintenance of a tracer's store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvtrail.tracer.reports import output_file

if TYPE_CHECKING:
    from kvtrail.tracer.store.sqlite.upkeep import Fault

ACTIONS = ("verify", "rebuild")
_LOST = "`kvtrail store rebuild --force` judges the readable spans"


@click.command()
@click.argument("action", type=click.Choice(ACTIONS), metavar="|".join(ACTIONS))
@click.option(
    "--store",
    default="kvtrail.db",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="SQLite file of the sidecar: its --store or --spool.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Rebuild from the readable part of a damaged log.",
)
def store(action: str, store: Path, force: bool) -> None:
    """Verify a store, or rebuild what is derived from its log.

    verify reads all of it, also while a tracer runs. rebuild judges the log again and derives rows, lanes, totals, sums and
    findings from it; where part of the log is damaged, only with --force. Stop the tracer before it.

    Exit code 0: done, or the store is intact; 1: it is damaged; 2: a file cannot be used.

    Example: kvtrail store verify --store /var/lib/kvtrail.db

    Example: kvtrail store rebuild --store kvtrail.db
    """
    from kvtrail.tracer.store import StoreError
    from kvtrail.tracer.store.sqlite import upkeep

    with output_file.or_exit(None, StoreError, doing=action):
        if action == "verify":
            faults = list(upkeep.verify(store))
            for fault in faults:
                click.echo(fault.text)
            click.echo(f"{store} is {_outcome(faults)}")
            raise click.exceptions.Exit(1 if faults else 0)
        _rebuild(store, force=force)


def _outcome(faults: Sequence[Fault]) -> str:
    if not faults:
        return "intact"
    if any(fault.is_lost for fault in faults):
        return f"damaged, and data is lost: {_LOST}"
    return "damaged: `kvtrail store rebuild` rebuilds derived data"


def _rebuild(store: Path, *, force: bool) -> None:
    from kvtrail.tracer.serve.receive.rebuild import rebuild
    from kvtrail.tracer.store import StoreError
    from kvtrail.tracer.store.sqlite import upkeep

    lost = [fault for fault in upkeep.verify(store) if fault.is_lost]
    if lost and not force:
        raise StoreError(f"{store} is damaged, and data is lost: {lost[0].text}; {_LOST}")
    spans = rebuild(store)
    click.echo(f"{store}: {f'the readable ones of {spans} spans' if lost else f'{spans} spans'} were judged again")
