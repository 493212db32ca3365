"""The sidecar process: its servers and its background thread, started and stopped together."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvtrail.tracer.serve import logs
from kvtrail.tracer.serve.access import Tls, access, check_bind_address
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.bind_address import address, bound
from kvtrail.tracer.serve.finding_log import FindingLog
from kvtrail.tracer.serve.hosts import KnownHosts
from kvtrail.tracer.serve.http_server import HttpServer, port_of
from kvtrail.tracer.serve.known_findings import KnownFindingsFile
from kvtrail.tracer.serve.limits import Limits, configure_heap, raise_descriptors, release_heap
from kvtrail.tracer.serve.metrics.metrics import Metrics, Rejected
from kvtrail.tracer.serve.other_sides import OtherSides
from kvtrail.tracer.serve.receive.grpc_receiver import GrpcReceiver
from kvtrail.tracer.serve.receive.intake import Intake
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.roles import TokenFile
from kvtrail.tracer.serve.shipping import Shipper
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.sqlite.outbox import Outbox
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

logger = logging.getLogger("kvtrail")

TIDY_EVERY_S = 1.0
ROWS_EVERY_NS = 2 * 10**9
"""How often the rows of requests are written. Who asks for them gets them at once, so not every change need be written."""
PRUNE_EVERY = 60
"""Rounds of tidying from one pruning of the store to the next."""
DRAIN_S = 5.0
"""How long requests that are being answered may take, by each protocol, when the process is to end. Kubernetes kills it after
30 seconds."""
HOUR_NS = 3600 * 10**9
GC_THRESHOLDS = (100_000, 50, 100)
"""Accounts are many objects and few cycles. With CPython's own thresholds, looking for these takes a fifth of the
processor."""


@dataclass(slots=True)
class Changeable:
    """The options of `kvtrail serve` that may change while it runs."""

    retain_hours: float
    retain_gib: float
    allow_host: Sequence[str]


def serve(
    *,
    host: str,
    grpc_host: str,
    grpc_port: int,
    http_port: int,
    store: Path | Address,
    spool: Path,
    spool_mb: int,
    trace_file: Path | None,
    max_requests: int,
    limits: Limits,
    nice: int,
    log_format: str,
    changeable: Changeable,
    token_file: Sequence[TokenFile],
    tenants: Path | None,
    known_findings: Path | None,
    insecure: bool,
    tls: Tls | None,
) -> None:
    """Serve until SIGINT or SIGTERM, then store and judge what has been received so far. The arguments are the options of
    `kvtrail serve`.

    Raises:
        Unusable: the file of tenants, or that of known findings, cannot be used.
        Unsafe: anybody could use it, or what should prevent that cannot be read.
        PortTaken: an address is in use.
        StoreError: the store or the trace file cannot be opened.
    """
    os.umask(0o077)  # what it writes is its owner's alone
    os.nice(nice)  # before any thread starts, since threads inherit it
    gc.set_threshold(*GC_THRESHOLDS)
    configure_heap()
    tokens, names, known = access(token_file), TenantNames(tenants), KnownFindingsFile(known_findings)
    for each in (host, grpc_host):
        check_bind_address(each, tokens, insecure=insecure)
    if tls is not None:
        tls.check()
    metrics = Metrics()
    logs.set_up(logs.Format(log_format), metrics.log_left_out.inc)
    listener = bound(host, http_port)
    grpc_receiver = GrpcReceiver(grpc_host, grpc_port, tokens=tokens, tls=tls)
    path, outbox, shipper = spool, None, None
    most_bytes = int(changeable.retain_gib * 2**30)
    if isinstance(store, Path):
        path = store
    else:
        store.check_client()
        outbox = Outbox(spool, most_bytes=min(spool_mb * 2**20, most_bytes // 2))  # the log is in the same file
        shipper = Shipper(outbox, partial(_fleets_store, store, outbox, changeable))
        metrics.watch_spool(shipper)
    writer = SqliteWriter(path, outbox=outbox, most_bytes=most_bytes)
    finding_log = FindingLog.from_environment()
    try:
        pipeline = Pipeline(
            writer,
            metrics,
            trace_file=trace_file,
            finding_log=finding_log,
            known_findings=known,
            max_requests=max_requests,
            rows_every_ns=ROWS_EVERY_NS,
            resume=False,
        )
    except OSError as error:
        raise StoreError(f"cannot append to the trace file {trace_file}: {error.strerror}") from error
    intake = Intake(pipeline, most_bytes=limits.request_bytes)
    raise_descriptors()
    grpc_receiver.start(intake, metrics)
    stop = threading.Event()
    tidier = threading.Thread(target=_tidy, args=(pipeline, changeable, stop), name="tidy", daemon=True)
    resumer = threading.Thread(target=pipeline.resume, name="resume", daemon=True)
    resumer.start()
    tidier.start()
    if shipper is not None:
        shipper.others = OtherSides(pipeline)
        shipper.start()
    hosts = KnownHosts(lambda: (host, *changeable.allow_host))
    app = application(
        pipeline,
        SqliteReader(path),
        metrics,
        intake=intake,
        shipper=shipper,
        hosts=hosts,
        tokens=tokens,
        tenants=names,
        limits=limits,
    )
    http_server = HttpServer(
        app,
        limits=limits,
        drain_s=DRAIN_S,
        on_refusal=partial(metrics.count_rejected, "http", Rejected.CONNECTIONS),
        tls=tls,
    )
    metrics.watch("http_connections", "Connections over HTTP.", lambda: http_server.connections)
    http = f"{'http' if tls is None else 'https'}://{address(host, port_of(listener))}"
    logger.info(
        f"kvtrail tracer: OTLP on {address(grpc_host, grpc_receiver.port)} (gRPC) and {http}/v1/traces, API on {http}/docs,"
        f" metrics on /metrics, store {store}. Press Ctrl-C to stop."
    )
    try:
        http_server.serve_on(listener)
    finally:
        logger.info("kvtrail tracer: stopping; what was received is being stored")
        grpc_receiver.stop(grace=DRAIN_S)
        stop.set()
        tidier.join()
        pipeline.stop_resuming()
        resumer.join()
        if shipper is not None:
            pipeline.storage.catch_up()
            shipper.stop(within_s=DRAIN_S)
        pipeline.close()
        if finding_log is not None:
            finding_log.close(within_s=DRAIN_S)


def _fleets_store(store: Address, outbox: Outbox, changeable: Changeable) -> ClickHouseWriter:
    return ClickHouseWriter(store, tracer=outbox.tracer(), retain_hours=changeable.retain_hours)


def _tidy(pipeline: Pipeline, changeable: Changeable, stop: threading.Event) -> None:
    rounds = 0
    trouble = ""
    while not stop.wait(TIDY_EVERY_S):
        try:
            pipeline.tidy()
            pipeline.storage.fold()
            release_heap()
            if rounds % PRUNE_EVERY == 0 or pipeline.storage.is_filling():
                pipeline.storage.prune(
                    retain_ns=int(changeable.retain_hours * HOUR_NS), most_bytes=int(changeable.retain_gib * 2**30)
                )
            rounds += 1
            trouble = ""
        except StoreError as error:
            if trouble != (trouble := str(error)):
                logger.error("%s; trying again every %s s", error, TIDY_EVERY_S)
        except Exception:
            logger.exception("tidying failed; trying again in %s s", TIDY_EVERY_S)
