"""`kvtrail serve`: run the sidecar."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtrail.tracer.commands.options import Several, Store, TokenFiles
from kvtrail.tracer.serve import limits

if TYPE_CHECKING:
    from kvtrail.tracer.serve.access import Tls

PORT = click.IntRange(0, 65535)
"""0 chooses a free port, which the log names."""
_FILE = click.Path(path_type=Path, dir_okay=False)
MAX_HOURS = 10**6
"""More than a century."""
MAX_GIB = 10**6
"""Almost an exbibyte."""


def _finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter("it must be a number of hours")
    return value


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on for HTTP.")
@click.option(
    "--grpc-host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on for OTLP over gRPC, for engines on this machine. Engines elsewhere use OTLP over HTTP.",
)
@click.option(
    "--grpc-port", type=PORT, default=4317, show_default=True, help="Port for OTLP over gRPC; 0 chooses a free one."
)
@click.option(
    "--http-port",
    type=PORT,
    default=4318,
    show_default=True,
    help="Port for OTLP over HTTP, the API, /metrics and /docs; 0 chooses a free one.",
)
@click.option(
    "--store",
    type=Store(),
    default="kvtrail.db",
    show_default=True,
    help="SQLite file for spans, accounts and findings; created if it does not exist. Or a ClickHouse URL,"
    " `clickhouse://user:password@host:port/database`; writes are buffered in --spool.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Receive no spans; serve the API over the ClickHouse of --store, in which the sidecars of a fleet store their data.",
)
@click.option(
    "--spool",
    type=_FILE,
    default="kvtrail.db",
    show_default=True,
    help="SQLite file that buffers writes, if --store is a ClickHouse.",
)
@click.option(
    "--spool-mb",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Maximum compressed size of the spool in MiB. When it is full, the oldest entries are dropped.",
)
@click.option(
    "--retain-hours",
    default=72.0,
    show_default=True,
    type=click.FloatRange(min=0.01, max=MAX_HOURS),
    callback=_finite,
    help="Drop spans and requests older than this. Findings stay.",
)
@click.option(
    "--retain-gib",
    default=50.0,
    show_default=True,
    type=click.FloatRange(min=0.01, max=MAX_GIB),
    callback=_finite,
    help="Maximum size of the store's files in GiB, WAL included. The oldest spans and requests are dropped first, findings"
    " last.",
)
@click.option(
    "--max-requests",
    default=limits.MAX_REQUESTS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of requests in memory. Late events of an evicted request are judged with its stored events.",
)
@click.option(
    "--max-request-mib",
    default=limits.DEFAULTS.max_request_mib,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum size of an OTLP request in MiB, compressed or not. Over gRPC it is 1 MiB.",
)
@click.option(
    "--nice",
    default=5,
    show_default=True,
    type=click.IntRange(0, 19),
    help="Nice value of the process, so that an engine on the same cores has priority.",
)
@click.option(
    "--allow-host",
    cls=Several,
    multiple=True,
    metavar="NAME",
    help="A host name that HTTP requests may use, besides addresses, localhost and this machine's own name."
    " `*` matches anything: `*.svc.cluster.local`. May be given several times.",
)
@click.option(
    "--token-file",
    cls=Several,
    multiple=True,
    type=TokenFiles(),
    help="File of bearer tokens, one per line. With it, everything except /healthz and /readyz requires a token. Tokens of"
    " `write=FILE` and `read=FILE` have that role only. Reloaded when it changes. May be given several times.",
)
@click.option(
    "--tenants",
    type=_FILE,
    help="YAML file with the names of tenants, a line `DIGEST: NAME` for each. Reloaded when it changes.",
)
@click.option(
    "--known-findings",
    type=_FILE,
    help="YAML file of known findings: a list of entries with `rule`, `why` and, as needed, `engine`, `connector`,"
    " `version` and `until`. Pages mark them, and alerts ignore them. Reloaded when it changes.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without tokens.")
@click.option(
    "--tls-cert", type=_FILE, help="PEM file of the sidecar's certificate, for gRPC and HTTP. Needs --tls-key."
)
@click.option("--tls-key", type=_FILE, help="PEM file of the certificate's key.")
@click.option(
    "--tls-client-ca", type=_FILE, help="PEM file of the CAs that sign client certificates; clients must then have one."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Write the log as text or as JSON, one object per line.",
)
def serve(
    *,
    read_only: bool,
    max_request_mib: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    **options: Any,
) -> None:
    """Run the sidecar: receive spans, judge them, serve the API and the metrics.

    With OTEL_EXPORTER_OTLP_ENDPOINT in its environment it exports its findings, as log records.

    Example: kvtrail serve --store /var/lib/kvtrail/kvtrail.db

    Example: kvtrail serve --read-only --store clickhouse://clickhouse/kvtrail
    """
    from kvtrail.tracer.serve.bind_address import PortTaken
    from kvtrail.tracer.serve.server import Receiving
    from kvtrail.tracer.serve.server import serve as run
    from kvtrail.tracer.store import StoreError

    receiving = Receiving(**{each.name: options.pop(each.name) for each in fields(Receiving)})
    if read_only and isinstance(options["store"], Path):
        raise click.UsageError("--read-only needs a --store that is the address of a ClickHouse")
    if not read_only and receiving.grpc_port == options["http_port"] != 0:
        raise click.UsageError(f"--grpc-port and --http-port are both {receiving.grpc_port}; each needs its own")
    try:
        run(
            receiving=None if read_only else receiving,
            limits=limits.Limits(max_request_mib=max_request_mib),
            tls=_tls_of(tls_cert, tls_key, tls_client_ca),
            **options,
        )
    except (PortTaken, StoreError) as error:
        raise click.ClickException(str(error)) from error


def _tls_of(certificate: Path | None, key: Path | None, client_authorities: Path | None) -> Tls | None:
    """The TLS files, if TLS is configured.

    Raises:
        click.UsageError: one of them is missing.
    """
    from kvtrail.tracer.serve.access import Tls

    if (certificate is None) != (key is None) or (client_authorities is not None and certificate is None):
        raise click.UsageError("--tls-cert and --tls-key belong together, and --tls-client-ca needs both")
    return Tls(certificate, key, client_authorities) if certificate is not None and key is not None else None
