"""A row that is damaged: what else there is, is shown, and the next start is as before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from history import START_NS, history
from stores import FleetTracer, clickhouse
from test_store import STORY, filled
from test_store_file import overwrite, root_page
from wire import encoded

from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.rebuild import rebuild
from kvtrail.tracer.store import Batch, Chunk, Sort
from kvtrail.tracer.store import damage as store_damage
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

FINE = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nend"


def changed(path: Path, damage: str) -> None:
    """Change the file of a store behind its back."""
    db = sqlite3.connect(path)
    db.executescript(damage)
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE requests SET body = '{' WHERE request = 'r-1-0123abcd'",
        "UPDATE requests SET body = x'00' WHERE request = 'r-1-0123abcd'",
        "UPDATE requests SET body = CAST(x'ff22fe' AS TEXT) WHERE request = 'r-1-0123abcd'",
        "UPDATE requests SET loaded = 'many' WHERE request = 'r-1-0123abcd'",
        "UPDATE requests SET changes = '{' WHERE request = 'r-1-0123abcd'",
        "UPDATE requests SET transfers = CAST(x'ff' AS TEXT) WHERE request = 'r-1-0123abcd'",
        "UPDATE request_measures SET tokens = '{' WHERE number = 2",
        "UPDATE findings SET body = 'null'",
        "UPDATE engines SET model = CAST(x'ff' AS TEXT)",
        "UPDATE recorders SET seen = 'x'",
        "UPDATE launches SET state = 'x', cause = '{'",
    ],
)
def test_a_damaged_row_costs_no_other_row_and_no_start(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.db"
    _, reader, pipeline = filled(path, STORY, FINE, FINE)
    pipeline.close()
    changed(path, damage)
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    client = TestClient(application(pipeline, reader, Metrics()), raise_server_exceptions=False)
    ever = {"from_ns": START_NS - 10**9, "to_ns": START_NS + 10**12}
    for sort in Sort:
        rows = client.get("/api/requests", params={"sort": sort}).raise_for_status().json()
        assert {row["request"] for row in rows} >= {"r-0-0123abcd", "r-2-0123abcd"}
    for route in ("totals", "fleet", "findings", "status", "efficiency", "health", "requests?near=r-0-0123abcd"):
        client.get(f"/api/{route}").raise_for_status()
    assert client.get("/api/lanes", params=ever).raise_for_status().json()["known"] >= 2
    counted: dict[str, str | int] = {"where": "evicted = 0", "since_ns": ever["from_ns"], "until_ns": ever["to_ns"]}
    for route in ("latency", "latency/measures", "latency/groups"):
        assert (
            client.get(f"/api/{route}", params={**counted, "by": "engine"}).raise_for_status().json()["requests"] == 3
        )
    assert client.get("/api/requests/r-0-0123abcd").is_success
    assert client.get("/api/requests/r-1-0123abcd").status_code in (200, 503)
    pipeline.close()
    rebuild(path)
    assert len(reader.requests()) == 3


def test_a_damaged_row_that_was_met_is_counted_once_and_everybody_who_watches_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    _, reader, pipeline = filled(path, STORY, FINE, FINE)
    pipeline.tidy()
    metrics = Metrics()
    client = TestClient(application(pipeline, reader, metrics), raise_server_exceptions=False)
    probe, health = client.get("/readyz"), client.get("/api/health").json()
    assert (probe.status_code, probe.json(), health["damage"]) == (200, {"status": "ok"}, None)
    assert "kvtrail_store_damaged_rows 0.0" in client.get("/metrics").text
    changed(path, "UPDATE requests SET body = x'00' WHERE request = 'r-1-0123abcd'")
    for _ in range(3):
        client.get("/api/requests").raise_for_status()
    assert "kvtrail_store_damaged_rows 1.0" in client.get("/metrics").text
    probe, health = client.get("/readyz"), client.get("/api/health").json()
    said = "the store has 1 damaged row (requests), left out of answers: `kvtrail store verify` lists the damage"
    assert (probe.status_code, probe.json()["status"], health["status"]) == (200, "ok", "ok")
    assert probe.json()["damage"] == health["damage"]
    assert health["damage"].startswith(said)
    assert "`kvtrail store rebuild`" in health["damage"]
    texts = [each["text"] for each in client.get("/api/status").json()["statements"] if each["kind"] == "damage"]
    assert [text.lower() for text in texts] == [health["damage"].lower()]
    changed(path, "UPDATE findings SET body = 'null'")
    client.get("/api/findings").raise_for_status()
    assert "the store has 2 damaged rows (findings, requests)" in client.get("/readyz").json()["damage"]
    assert pipeline.ingest(encoded(history(FINE, request="later-0123abcd", recorder="later")), transport="http") is None
    pipeline.tidy()
    assert client.get("/api/requests/later-0123abcd").is_success
    pipeline.close()


def test_spans_that_do_not_decompress_are_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    _, reader, pipeline = filled(path, STORY, FINE)
    client = TestClient(application(pipeline, reader, Metrics()))
    changed(path, "UPDATE chunks SET body = x'00' WHERE number = 1")
    client.get("/api/requests/r-0-0123abcd").raise_for_status()
    assert "(chunks)" in client.get("/readyz").json()["damage"]
    assert client.get("/api/requests/r-1-0123abcd").json()["steps"]
    pipeline.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE spool SET body = x'00' WHERE number = 2",
        "UPDATE spool SET body = '', bytes = 'many', spans = x'ff', at_ns = 'x' WHERE number = 2",
        "UPDATE spool SET body = CAST('{' AS TEXT) WHERE number = 2",
        "UPDATE spool SET body = substr(body, 1, 30) || x'ff' || substr(body, 32) WHERE number = 2",
    ],
)
def test_a_damaged_batch_of_the_spool_keeps_nothing_from_clickhouse(tmp_path: Path, damage: str) -> None:
    tracer = FleetTracer(tmp_path, clickhouse())
    for name in ("first", "second", "third"):
        tracer.hear(history(FINE, request=f"{name}-0123abcd", recorder=name))
    changed(tracer.path, damage)
    tracer.sender.send()
    sent = {span.attributes["kvtrail.request.id"] for _, span in tracer.fleet.tail(after=0) if span.attributes}
    assert sent == {"first-0123abcd", "third-0123abcd"}
    assert tracer.spool.waiting().batches == 0
    assert "the store has 1 damaged row (spool)" in (store_damage.sentence() or "")
    tracer.hear(history(FINE, request="fourth-0123abcd", recorder="fourth"))
    tracer.send()
    assert tracer.fleet.request("fourth-0123abcd") is not None
    tracer.pipeline.close()


def test_a_batch_with_damaged_spans_is_one_part_that_does_not_fit(tmp_path: Path) -> None:
    tracer = FleetTracer(tmp_path, clickhouse())
    broken = Batch(chunk=Chunk(payload=b"\xff" * 10, spans=1, last_ns=1))
    tracer.hear(history(FINE, request="whole-0123abcd", recorder="whole"))
    (whole,) = [batch for _, batch in tracer.spool.read(after=0, most_bytes=1)]
    assert len(tracer.sink().ship([(1, broken), (2, whole)])) == 1
    assert {span.attributes["kvtrail.request.id"] for _, span in tracer.fleet.tail(after=0)} == {"whole-0123abcd"}
    tracer.pipeline.close()


def test_a_damaged_page_is_said_and_is_no_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path, STORY)[2].close()
    overwrite(path, (root_page(path, "requests") - 1) * 4096)
    pipeline = Pipeline(SqliteWriter(tmp_path / "other.db"), Metrics())
    client = TestClient(application(pipeline, SqliteReader(path), Metrics()), raise_server_exceptions=False)
    answer = client.get("/api/requests")
    assert (answer.status_code, "the store cannot be read" in answer.json()["detail"]) == (503, True)
    pipeline.close()
