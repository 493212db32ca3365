"""The process of `kvtrail serve`: a sidecar, or only the API over the data of a fleet's sidecars."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvtrail.tracer.serve import logs
from kvtrail.tracer.serve.access import Tls, check_bind_address
from kvtrail.tracer.serve.api.process_state import FleetProcess, Live
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.bind_address import address, bound
from kvtrail.tracer.serve.finding_log import FindingLog
from kvtrail.tracer.serve.http_server import HttpServer
from kvtrail.tracer.serve.known_findings import KnownFindingsFile
from kvtrail.tracer.serve.limits import Limits, configure_heap, raise_descriptors, release_heap
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.grpc_receiver import GrpcReceiver
from kvtrail.tracer.serve.receive.intake import Intake
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.serve.spool_sender import SpoolSender
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.serve.tokens import Access, TokenFile
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite.spool import Spool
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

logger = logging.getLogger("kvtrail")

TIDY_EVERY_S = 1.0
ROWS_EVERY_NS = 2 * 10**9
"""Interval in which the rows of requests are written. A query writes pending rows first, so not every change must be
written."""
PRUNE_EVERY = 60
"""Number of tidying rounds between two prunings of the store."""
DRAIN_S = 5.0
"""Time that running requests may take, for each protocol, when the process shuts down. Kubernetes kills it after 30
seconds."""
HOUR_NS = 3600 * 10**9
GC_THRESHOLDS = (100_000, 50, 100)
"""Garbage collection thresholds. Accounts are many objects with few cycles: with CPython's default thresholds, the collector
takes a fifth of the CPU time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """The options of `kvtrail serve` for receiving spans."""

    grpc_host: str
    grpc_port: int
    spool: Path
    spool_mb: int
    max_requests: int
    nice: int
    retain_hours: float
    retain_gib: float

    @property
    def most_bytes(self) -> int:
        """Maximum size of the store's files."""
        return int(self.retain_gib * 2**30)


@dataclass(frozen=True, slots=True)
class _Served:
    """The source of the HTTP server's answers, and its description for the log."""

    process: Live
    reader: Reader
    words: str
    intake: Intake | None = None
    sender: SpoolSender | None = None


def serve(
    *,
    host: str,
    http_port: int,
    store: Path | Address,
    receiving: Receiving | None,
    limits: Limits,
    allow_host: Sequence[str],
    token_file: Sequence[TokenFile],
    tenants: Path | None,
    known_findings: Path | None,
    insecure: bool,
    tls: Tls | None,
    log_format: str,
) -> None:
    """Serve until SIGINT or SIGTERM; a sidecar then stores and judges all received data. The arguments are options of
    `kvtrail serve`. Without `receiving`, only the API is served, over the ClickHouse of a fleet.

    Raises:
        Refused: anybody could use it, or a named file cannot be used.
        PortTaken: an address is in use.
        StoreError: the store cannot be opened.
    """
    tokens = Access(token_file) if token_file else None
    names, known = TenantNames(tenants), KnownFindingsFile(known_findings)
    for each in (host,) if receiving is None else (host, receiving.grpc_host):
        check_bind_address(each, tokens, insecure=insecure)
    if tls is not None:
        tls.check()
    metrics = Metrics()
    logs.set_up(log_format)
    listener = bound(host, http_port)
    url = f"{'http' if tls is None else 'https'}://{address(host, listener.getsockname()[1])}"
    with (
        _fleet(store, known)
        if receiving is None
        else _sidecar(receiving, store, metrics, known, limits=limits, tokens=tokens, tls=tls, url=url)
    ) as served:
        app = application(
            served.process,
            served.reader,
            metrics,
            intake=served.intake,
            sender=served.sender,
            allowed_hosts=(host, *allow_host),
            tokens=tokens,
            tenants=names,
            limits=limits,
        )
        http_server = HttpServer(
            app,
            limits=limits,
            drain_s=DRAIN_S,
            on_refusal=partial(metrics.count_rejected, "http", "connections"),
            tls=tls,
        )
        logger.info(
            f"kvtrail tracer: {served.words}, HTTP on {url} (the API: {url}/docs), store {store}. Press Ctrl-C to stop."
        )
        http_server.serve_on(listener)


def _fleet(store: Path | Address, known: KnownFindingsFile) -> AbstractContextManager[_Served]:
    """The source of answers about a fleet. Raises StoreError."""
    assert isinstance(store, Address)  # the command has checked it
    reader = ClickHouseReader(store, is_first=True)
    return nullcontext(_Served(FleetProcess(reader, known), reader, "only the API"))


@contextmanager
def _sidecar(
    options: Receiving,
    store: Path | Address,
    metrics: Metrics,
    known: KnownFindingsFile,
    *,
    limits: Limits,
    tokens: Access | None,
    tls: Tls | None,
    url: str,
) -> Iterator[_Served]:
    """A sidecar that receives, judges and stores until the context ends; `url` is its HTTP address. Raises PortTaken and
    StoreError."""
    os.umask(0o077)  # only the owner may read its files
    os.nice(options.nice)  # before any thread starts, since threads inherit it
    gc.set_threshold(*GC_THRESHOLDS)
    configure_heap()
    receiver = GrpcReceiver(options.grpc_host, options.grpc_port, tokens=tokens, tls=tls)
    path, spool, sender = options.spool, None, None
    if isinstance(store, Path):
        path = store
    else:
        store.check_client()
        # The log is in the same file.
        spool = Spool(path, most_bytes=min(options.spool_mb * 2**20, options.most_bytes // 2))
        metrics.watch_spool(spool)
    writer = SqliteWriter(path, spool=spool, most_bytes=options.most_bytes)
    finding_log = FindingLog.from_environment()
    pipeline = Pipeline(
        writer,
        metrics,
        finding_log=finding_log,
        known_findings=known,
        max_requests=options.max_requests,
        rows_every_ns=ROWS_EVERY_NS,
        resume=False,
    )
    intake = Intake(pipeline, most_bytes=limits.request_bytes)
    raise_descriptors()
    receiver.start(intake, metrics)
    stop = threading.Event()
    tidier = threading.Thread(target=_tidy, args=(pipeline, options, stop), name="tidy", daemon=True)
    resumer = threading.Thread(target=pipeline.recovery.run, name="resume", daemon=True)
    resumer.start()
    tidier.start()
    if spool is not None and isinstance(store, Address):
        open_writer = partial(ClickHouseWriter, store, tracer=spool.tracer(), retain_hours=options.retain_hours)
        sender = SpoolSender(spool, open_writer, RemoteHandoffs(pipeline))
        sender.start()
    words = f"OTLP on {address(options.grpc_host, receiver.port)} (gRPC) and {url}/v1/traces, metrics on {url}/metrics"
    try:
        yield _Served(pipeline, SqliteReader(path), words, intake, sender)
    finally:
        logger.info("kvtrail tracer: stopping; received data is being stored")
        receiver.stop(grace=DRAIN_S)
        stop.set()
        tidier.join()
        pipeline.stop_resuming()
        resumer.join()
        if sender is not None:
            pipeline.storage.catch_up()
            sender.stop(within_s=DRAIN_S)
        pipeline.close()
        if finding_log is not None:
            finding_log.close(within_s=DRAIN_S)


def _tidy(pipeline: Pipeline, options: Receiving, stop: threading.Event) -> None:
    rounds = 0
    trouble = ""
    while not stop.wait(TIDY_EVERY_S):
        try:
            pipeline.tidy()
            pipeline.storage.fold()
            release_heap()
            if rounds % PRUNE_EVERY == 0 or pipeline.storage.is_filling():
                pipeline.storage.prune(retain_ns=int(options.retain_hours * HOUR_NS))
            rounds += 1
            trouble = ""
        except StoreError as error:
            if trouble != (trouble := str(error)):
                logger.error("%s; trying again every %s s", error, TIDY_EVERY_S)
        except Exception:
            logger.exception("tidying failed; trying again in %s s", TIDY_EVERY_S)
