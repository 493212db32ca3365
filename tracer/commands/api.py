"""`kvtrail api`: the api over a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvtrail.tracer.commands.options import Store
from kvtrail.tracer.commands.refusal import Refused
from kvtrail.tracer.commands.serve import PORT, serve, tls_of

_SHARED = (
    "host",
    "allow_host",
    "token_file",
    "tenants",
    "known_findings",
    "insecure",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "log_format",
)
"""Options that mean what they mean to `kvtrail serve`."""


@click.command(params=[option for option in serve.params if option.name in _SHARED])
@click.option(
    "--http-port", type=PORT, default=4320, show_default=True, help="Port for the API, /metrics and /docs, over HTTP."
)
@click.option(
    "--store",
    type=Store(),
    required=True,
    help="The ClickHouse that the tracers of the fleet send to: `clickhouse://user:password@host:port/database`.",
)
def api(store: Any, tls_cert: Path | None, tls_key: Path | None, tls_client_ca: Path | None, **options: Any) -> None:
    """Serve the API, and with it the dashboard, over all that the tracers of a fleet have stored in ClickHouse. It receives
    nothing.

    Example: kvtrail api --store clickhouse://kvtrail@clickhouse:8123/kvtrail
    """
    from kvtrail.tracer.serve.bind_address import PortTaken, Unsafe
    from kvtrail.tracer.serve.fleet import serve as run
    from kvtrail.tracer.serve.reloaded import Unusable
    from kvtrail.tracer.store import StoreError

    if isinstance(store, Path):
        raise click.UsageError(
            "--store must be the address of a ClickHouse; `kvtrail serve` serves the API of its own file"
        )
    try:
        run(store=store, tls=tls_of(tls_cert, tls_key, tls_client_ca), **options)
    except (Unsafe, Unusable) as error:
        raise Refused(str(error)) from error
    except (PortTaken, StoreError) as error:
        raise click.ClickException(str(error)) from error
