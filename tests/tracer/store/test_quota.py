"""What a store takes of the disk, all its files together, stays below its bound: with a real sidecar, and at worst."""

from __future__ import annotations

import secrets
import sqlite3
import time
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import SLOW_S, listening

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

MIB = 2**20


def incompressible(spans: int) -> bytes:
    """Spans of 1.4 KB each; a store saves half of them."""
    request, now_ns = ExportTraceServiceRequest(), time.time_ns()
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(spans):
        ids = {"trace_id": secrets.token_bytes(16), "span_id": secrets.token_bytes(8)}
        span = scope.spans.add(name="x", start_time_unix_nano=now_ns - 1, end_time_unix_nano=now_ns, **ids)
        span.attributes.add(key="pad").value.string_value = secrets.token_hex(700)
    return request.SerializeToString()


def taken(store: Path) -> int:
    """Bytes of all files of a store."""
    return sum(path.stat().st_size for path in store.parent.glob(f"{store.name}*"))


def test_a_sidecar_keeps_its_bound_whatever_comes(tmp_path: Path) -> None:
    """All is taken and acknowledged, and the latest is there; the WAL counts."""
    tracer = listening(tmp_path, "--retain-gib", "0.02")
    most, headers = 0, {"content-type": "application/x-protobuf"}
    try:
        with httpx.Client() as client:
            client.get(f"{tracer.url}/readyz", timeout=SLOW_S)
            for _ in range(80):
                body = incompressible(500)
                client.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).raise_for_status()
                most = max(most, taken(tracer.store))
        assert 10 * MIB < most <= 0.02 * 1024 * MIB
        first = tracer.get("/api/spans", limit=1)[0]["number"]
        assert 1 < first <= 80 * 500 - 500
        assert len(tracer.get("/api/spans", after=80 * 500 - 100)) == 100
    finally:
        tracer.end()


def pipeline(path: Path, bound: int) -> tuple[Pipeline, SqliteWriter]:
    writer = SqliteWriter(path, most_bytes=bound)
    return Pipeline(writer, Metrics()), writer


def test_a_reader_that_does_not_end_cannot_make_the_wal_grow(tmp_path: Path) -> None:
    """Senders are asked to try again, and are heard when that reader has ended."""
    path, bound = tmp_path / "s.db", 16 * MIB
    receiving, _ = pipeline(path, bound)
    receiving.ingest(incompressible(10), transport="grpc")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM chunks").fetchall()
    with pytest.raises(StoreError, match=r"WAL of the store .* is full"):  # noqa: PT012 - one of them is refused
        for _ in range(40):
            receiving.ingest(incompressible(500), transport="grpc")
    assert taken(path) <= bound
    reader.close()
    for _ in range(10):
        receiving.ingest(incompressible(500), transport="grpc")
    assert taken(path) <= bound
    receiving.close()


def test_what_was_set_aside_leaves_before_the_bound_is_broken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s.db"
    for number in range(3):
        (tmp_path / f"s.db.damaged-2026010{number}").write_bytes(bytes(3 * MIB))
    (tmp_path / "s.db.mine").write_bytes(bytes(MIB))
    receiving, _ = pipeline(path, 16 * MIB)
    assert sorted(each.name for each in tmp_path.glob("s.db.*")) == [
        "s.db.damaged-20260101", "s.db.damaged-20260102", "s.db.lock", "s.db.mine",
    ]  # fmt: skip
    assert "s.db.damaged-20260100 is deleted" in caplog.text
    for _ in range(30):
        receiving.ingest(incompressible(500), transport="grpc")
    assert taken(path) - MIB <= 16 * MIB, "but for a file that is not ours"
    receiving.close()


def test_a_store_larger_than_its_new_bound_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.store.sqlite.store.SMALLEST_VACUUM", 4)
    path = tmp_path / "s.db"
    receiving, _ = pipeline(path, 64 * MIB)
    for _ in range(40):
        receiving.ingest(incompressible(500), transport="grpc")
    assert taken(path) > 20 * MIB
    receiving.close()
    receiving, writer = pipeline(path, 12 * MIB)
    sum(writer.prune(before_ns=0))
    receiving.ingest(incompressible(500), transport="grpc")
    assert SqliteReader(path).tail(after=40 * 500, limit=10)
    receiving.close()
    assert taken(path) <= 12 * MIB


def test_the_file_itself_cannot_grow_beyond_its_part(tmp_path: Path) -> None:
    """Whatever is written to it, should pruning ever fail to keep up."""
    writer = SqliteWriter(tmp_path / "s.db", most_bytes=8 * MIB)
    writer._db.execute("CREATE TABLE other (body)")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        writer._db.executemany("INSERT INTO other VALUES (zeroblob(?))", [[MIB]] * 16)
    writer.close()
    assert (tmp_path / "s.db").stat().st_size < 8 * MIB
