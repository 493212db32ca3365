"""The conformance suite of the stores; SQLite is the one there is."""

from __future__ import annotations

import json
import sqlite3
import time
from itertools import count
from pathlib import Path

import pytest
from history import START_NS, history
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stores import last_number
from wire import encoded

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import Selection, StoreError
from kvtrail.tracer.store.sqlite import log
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"


def filled(path: Path, *texts: str) -> tuple[SqliteWriter, SqliteReader, Pipeline]:
    writer = SqliteWriter(path)
    pipeline = Pipeline(writer, Metrics())
    for number, text in enumerate(texts):
        events = history(text, request=f"r-{number}-0123abcd", recorder=f"rec-{number}")
        pipeline.ingest(encoded(events), transport="grpc")
    return writer, SqliteReader(path), pipeline


def as_request(span: Span) -> bytes:
    return otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line([span])))


def test_requests_are_found_by_parts_of_their_ids_and_by_filters(tmp_path: Path) -> None:
    _, reader, _ = filled(tmp_path / "s.db", STORY, "L 100 c0 h0 -> 0\nend", "L 100 c0 h0 -> 0")
    assert len(reader.requests()) == 3
    assert [r["request"] for r in reader.requests(search="r-1")] == ["r-1-0123abcd"]
    assert [r["request"] for r in reader.requests(verdict="drift")] == ["r-0-0123abcd"]
    assert [r["request"] for r in reader.requests(status="queued")] == ["r-2-0123abcd"]
    assert len(reader.requests(limit=2)) == 2
    assert reader.requests(before_ns=START_NS) == []
    assert reader.requests(search="'; DROP TABLE spans; --") == []
    external = reader.request("r-0-0123abcd")
    assert external is not None
    assert external["findings"] == 1
    caller = reader.request("r")  # what an OpenAI client saw, where `r-0` is the external id of its first prompt
    assert caller is not None
    by_trace = reader.request(caller["trace_id"])
    assert by_trace is not None
    assert by_trace["request"] == caller["request"]
    assert reader.request("nobody") is None


def test_the_log_is_not_read_to_find_a_request(tmp_path: Path) -> None:
    _, reader, _ = filled(tmp_path / "s.db", STORY)
    asked: list[str] = []
    reader.connection().set_trace_callback(asked.append)
    assert log.places_of(reader.query, [log.request_key("engine", "nobody")]) == {}
    reader.connection().set_trace_callback(None)
    steps = [detail for query in asked for *_, detail in reader.query(f"EXPLAIN QUERY PLAN {query}")]
    assert len(steps) > len(asked) == 2
    assert not [step for step in steps if step.startswith("SCAN chunks") and "chunks_fresh" not in step]


def test_a_requests_spans_and_the_foreign_ones_of_its_trace(tmp_path: Path) -> None:
    _, reader, pipeline = filled(tmp_path / "s.db", STORY)
    account = reader.request("r-0-0123abcd")
    assert account is not None
    ours = reader.spans_of(account)
    foreign = Span(
        trace_id=account["trace_id"], span_id="f" * 16, parent_id="", name="llm_request", start_ns=START_NS,
        end_ns=START_NS + 10**9, attributes={"gen_ai.request.id": "r-0"}, resource={"service.name": "vllm"}, scope="vllm",
    )  # fmt: skip
    pipeline.ingest(as_request(foreign), transport="grpc")
    assert len(reader.spans_of(account)) == len(ours) + 1
    assert reader.spans_of(account)[-1] == foreign
    elsewhere = replace(
        foreign, trace_id="e" * 32, span_id="e" * 16, attributes={"gen_ai.request.id": account["external"]}
    )
    pipeline.ingest(as_request(elsewhere), transport="grpc")
    assert elsewhere in reader.spans_of(account), "vLLM's span in a trace of its own, named by the external id"


def test_a_batch_that_comes_twice_is_stored_once(tmp_path: Path) -> None:
    _, reader, pipeline = filled(tmp_path / "s.db", STORY)
    before = (reader.totals(), last_number(reader), reader.findings())
    pipeline.ingest(encoded(history(STORY, request="r-0-0123abcd", recorder="rec-0")), transport="http")
    assert (reader.totals(), last_number(reader), reader.findings()) == before


def test_a_request_without_spans_takes_no_number(tmp_path: Path) -> None:
    """A recorder that only asks who listens sends one."""
    _, reader, pipeline = filled(tmp_path / "s.db")
    empty = ExportTraceServiceRequest.FromString(encoded(history(STORY)))
    del empty.resource_spans[0].scope_spans[0].spans[:]
    for _ in range(2):
        pipeline.ingest(empty.SerializeToString(), transport="grpc")
    assert last_number(reader) == 0
    pipeline.ingest(encoded(history(STORY)), transport="grpc")
    (account,) = reader.requests()
    assert len(reader.spans_of(account)) == last_number(reader) == len(history(STORY))


def test_spans_that_cannot_be_appended_are_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader, pipeline = filled(tmp_path / "s.db", STORY)
    monkeypatch.setattr(writer._log, "append", lambda chunk: [][0])
    with pytest.raises(IndexError):
        pipeline.ingest(encoded(history(STORY, request="other", recorder="other")), transport="grpc")
    monkeypatch.undo()
    writer._db.execute("UPDATE log_end SET number = 0")  # that number is taken
    with pytest.raises(sqlite3.IntegrityError):
        pipeline.ingest(encoded(history(STORY, request="other", recorder="other")[:1]), transport="grpc")
    assert len(reader.requests()) == 1


def test_a_span_that_is_twice_in_one_batch_is_stored_once(tmp_path: Path) -> None:
    _, reader, pipeline = filled(tmp_path / "s.db")
    events = history(STORY)
    pipeline.ingest(encoded([*events, events[1]]), transport="http")
    assert last_number(reader) >= len(events)
    account = reader.request("cmpl-1-0-0123abcd")
    assert account is not None
    assert (account["lookups"], len(reader.spans_of(account))) == (2, len(events))


def test_totals_and_tail(tmp_path: Path) -> None:
    _, reader, _ = filled(tmp_path / "s.db", STORY)
    totals = reader.totals()
    assert (totals["requests"], totals["running"], totals["lookups"], totals["preemptions"]) == (1, 0, 2, 1)
    assert (totals["matched"], totals["findings"]) == (256, 1)
    numbers = [number for number, _ in reader.tail(after=0)]
    assert numbers == sorted(numbers)
    assert [number for number, _ in reader.tail(after=numbers[2], limit=2)] == numbers[3:5]


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """The open request is read back: what comes after the restart is no gap, and its drift is found with its history."""
    events = history(STORY)
    writer, _, pipeline = filled(tmp_path / "s.db")
    pipeline.ingest(encoded(events[:4]), transport="grpc")
    writer.close()
    again = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    again.ingest(encoded(events[4:]), transport="grpc")
    (account,) = SqliteReader(tmp_path / "s.db").requests()
    assert (account["complete"], account["verdict"], account["lookups"]) == (True, "drift", 2)
    (finding,) = SqliteReader(tmp_path / "s.db").findings()
    assert [w["label"] for w in finding["witness"]] == ["L1", "L2"]


def test_old_requests_leave_and_findings_stay(tmp_path: Path) -> None:
    writer, reader, _ = filled(tmp_path / "s.db", STORY)
    assert sum(writer.prune(before_ns=START_NS)) == 0
    assert sum(writer.prune(before_ns=START_NS + 10**12)) > 0
    assert (reader.requests(), reader.totals()["requests"], len(reader.findings())) == ([], 0, 1)


def test_measures_move_and_leave_with_their_request(tmp_path: Path) -> None:
    writer, reader, _ = filled(tmp_path / "s.db", STORY, STORY)
    ever = Selection(since_ns=0, before_ns=2**62)
    assert reader.count(ever) == 2
    with writer._transaction():
        writer._db.execute("UPDATE requests SET started_ns = started_ns - 5 WHERE number = 1")
    assert reader.count(ever) == 1, "an earlier event has come; the row that follows is written with it"
    rows = reader.query("SELECT started_ns, number FROM requests WHERE number = 2")
    assert reader.query("SELECT started_ns, number FROM request_measures") == rows
    list(writer.prune(before_ns=time.time_ns()))
    assert reader.count(ever) == 0


def test_engines_that_left_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the time that spans are kept, after their last one: until then a request may need its resource."""
    writer, reader, pipeline = filled(tmp_path / "s.db", STORY)
    monkeypatch.setattr("kvtrail.tracer.serve.receive.engines.NOTE_ENGINE_NS", 0)
    now_ns = time.time_ns()
    clock = count(now_ns + 10**12)
    monkeypatch.setattr("kvtrail.tracer.store.sqlite.tables.time.time_ns", lambda: next(clock))
    pipeline.ingest(encoded(history(STORY, recorder="later", engine="later")), transport="grpc")
    assert list(reader.engines()) == ["engine", "later"]
    sum(writer.prune(before_ns=now_ns + 10**12 // 2 - 10**9))
    assert list(reader.engines()) == ["engine", "later"]
    sum(writer.prune(before_ns=now_ns + 10**12 // 2 + 10**9))
    assert list(reader.engines()) == ["later"]
    pipeline.ingest(encoded(history(STORY, request="again", recorder="rec-0")), transport="grpc")
    assert list(reader.engines()) == ["later", "engine"], "it is back"
    assert reader.tail(after=0)[-1][1].resource


def test_what_cannot_be_stored_is_kept_for_the_next_batch(tmp_path: Path) -> None:
    writer, reader, pipeline = filled(tmp_path / "s.db")
    blocker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    writer._db.execute("PRAGMA busy_timeout=50")
    blocker.execute("BEGIN IMMEDIATE")
    batch = encoded(history(STORY))
    with pytest.raises(StoreError, match=r"cannot write to the store .*s.db: database is locked"):
        pipeline.ingest(batch, transport="grpc")
    blocker.execute("ROLLBACK")
    pipeline.ingest(batch, transport="grpc")  # the sender tries again
    (account,) = reader.requests()
    assert (account["lookups"], account["verdict"], len(reader.findings())) == (2, "drift", 1)


def test_sightings_are_those_of_the_findings(tmp_path: Path) -> None:
    writer, reader, _ = filled(tmp_path / "s.db", STORY, STORY)
    (place, first_ns, last_ns) = reader.sightings()[0]
    findings = reader.findings()
    assert (place.rule, place.engine) == (findings[0]["rule"], findings[0]["engine"])
    assert first_ns == min(each["first_ns"] for each in findings)
    assert last_ns == max(each["last_ns"] for each in findings)
    writer.forget_derived()
    assert reader.sightings() == [], "as the findings, which are made again"
