"""A tracer that is started again while the disk is full: it answers, takes nothing, and goes on once there is room."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from clean_forks import CleanForks
from fastapi.testclient import TestClient
from history import history
from wire import encoded

from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

INDEX_BYTES = 32 * 1024
FINE = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nend"


def spans(name: str) -> bytes:
    return encoded(history(FINE, request=f"{name}-0123abcd", recorder=name))


def fill_and_die(path: Path) -> None:
    Pipeline(SqliteWriter(path), Metrics()).ingest(spans("before"), transport="grpc")
    os._exit(0)


def serve_without_room(path: Path) -> None:
    """No file can grow, but for SQLite's index of the WAL, which has its room already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (INDEX_BYTES, hard))
    pipeline = Pipeline(SqliteWriter(path), Metrics(), resume=False)
    client = TestClient(application(pipeline, SqliteReader(path), pipeline.metrics))
    pipeline.recovery.run()
    for number in range(2):
        assert [each["request"] for each in client.get("/api/requests").raise_for_status().json()] == [
            "before-0123abcd"
        ]
        assert client.get("/healthz").status_code == 200
        refused = client.post(
            "/v1/traces", content=spans(f"during-{number}"), headers={"content-type": "application/x-protobuf"}
        )
        assert (refused.status_code, client.get("/readyz").status_code) == (503, 503)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    pipeline.tidy()
    assert client.get("/readyz").status_code == 200
    pipeline.ingest(spans("after"), transport="http")
    stored = {each["request"] for each in client.get("/api/requests").json()}
    assert {"before-0123abcd", "after-0123abcd"} <= stored
    pipeline.close()


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    with closing(CleanForks()) as forks:
        yield forks


def test_a_restart_without_room_answers_and_recovers(tmp_path: Path, forks: CleanForks) -> None:
    path = tmp_path / "s.db"
    assert forks.run(fill_and_die, path) == 0
    assert (tmp_path / "s.db-wal").stat().st_size > INDEX_BYTES
    assert forks.run(serve_without_room, path) == 0


def test_a_stop_leaves_the_room_that_a_start_needs(tmp_path: Path) -> None:
    """All is in the file itself then."""
    path = tmp_path / "s.db"
    for number in range(3):
        pipeline = Pipeline(SqliteWriter(path), Metrics())
        pipeline.ingest(spans(f"r{number}"), transport="grpc")
        pipeline.close()
        sizes = [part.stat().st_size for part in (path.with_name("s.db-shm"), path.with_name("s.db-wal"))]
        assert sizes == [INDEX_BYTES, 0]
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(path.read_bytes())
        assert len(SqliteReader(copy).requests()) == number + 1
