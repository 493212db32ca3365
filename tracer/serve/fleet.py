"""The process of `kvtrail serve --read-only`: the api and the dashboard's answers over a fleet, and nothing that receives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kvtrail.tracer.serve import logs
from kvtrail.tracer.serve.access import Tls, access, check_bind_address
from kvtrail.tracer.serve.api.process import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.bind_address import address, bound
from kvtrail.tracer.serve.hosts import KnownHosts
from kvtrail.tracer.serve.http_server import HttpServer, port_of
from kvtrail.tracer.serve.known_findings import KnownFindingsFile
from kvtrail.tracer.serve.limits import Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.roles import TokenFile
from kvtrail.tracer.serve.server import DRAIN_S
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader

logger = logging.getLogger("kvtrail")


def serve(
    *,
    host: str,
    http_port: int,
    store: Address,
    allow_host: Sequence[str],
    token_file: Sequence[TokenFile],
    tenants: Path | None,
    known_findings: Path | None,
    insecure: bool,
    tls: Tls | None,
    log_format: str,
) -> None:
    """Serve until SIGINT or SIGTERM. The arguments are options of `kvtrail serve`.

    Raises:
        Unusable: the file of tenants, or that of known findings, cannot be used.
        Unsafe: anybody could use it, or what should prevent that cannot be read.
        PortTaken: the address is in use.
        StoreError: there is no such ClickHouse, or its tables can be neither read nor made.
    """
    tokens, names, known = access(token_file), TenantNames(tenants), KnownFindingsFile(known_findings)
    check_bind_address(host, tokens, insecure=insecure)
    if tls is not None:
        tls.check()
    listener = bound(host, http_port)
    reader = ClickHouseReader(store, is_first=True)
    metrics = Metrics()
    logs.set_up(logs.Format(log_format), metrics.log_left_out.inc)
    app = application(
        FleetProcess(reader, metrics.internal_errors, known),
        reader,
        metrics,
        hosts=KnownHosts(lambda: (host, *allow_host)),
        tokens=tokens,
        tenants=names,
    )
    http = f"{'http' if tls is None else 'https'}://{address(host, port_of(listener))}"
    logger.info(f"kvtrail tracer: only the API, over {store}, on {http}/docs. Press Ctrl-C to stop.")
    HttpServer(app, limits=Limits(), drain_s=DRAIN_S, tls=tls).serve_on(listener)
