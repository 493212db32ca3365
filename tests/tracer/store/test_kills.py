"""A sidecar that is killed at any statement of its store: what was derived from the log is that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clean_forks import CleanForks
from evicted_story import ABOUT, CHUNK
from evicted_story import STORY as EVICTED
from history import history
from processes import Tracer, until
from stores import last_number
from traffic import Engine, served
from wire import encoded

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.rebuild import rebuild
from kvtrail.tracer.store.sqlite import upkeep
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9
DERIVED = {
    "requests": "request, engine",
    "findings": "id",
    "savings": "step_s, at_s, engine, connector, epoch, measure",
}
"""The tables that are made of the log, and what identifies their rows."""


def batches() -> list[bytes]:
    """What two engines sent, in turns; one of them says what its caches hold."""
    began_ns = 1_760_000_000 * S
    story, events = (
        history(EVICTED, chunk=CHUNK),
        served(Engine("a"), from_ns=began_ns, to_ns=began_ns + 4 * S, stale_every=5),
    )
    half, middle = len(story) // 2, len(events) // 2
    return [
        encoded(story[:half], ABOUT), encoded(events[:middle]), encoded(story[half:], ABOUT), encoded(events[middle:]),
    ]  # fmt: skip


def derived(path: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows of the derived tables, without the numbers that only show in which order they were written."""
    db = sqlite3.connect(path)
    db.row_factory = sqlite3.Row
    tables = {}
    for table, keys in DERIVED.items():
        rows = [dict(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY {keys}")]
        tables[table] = [{k: v for k, v in row.items() if k not in ("number", "after_span")} for row in rows]
    db.close()
    return tables


def run(path: Path, payloads: list[bytes], killed_at: int | None = None, *, at_any: bool = False) -> None:
    """A tracer that is sent all of it, with rows now and then; killed before the statement of that number, of all or of those
    that change the file: commits, and what is written without one."""
    writer = SqliteWriter(path)
    statements = count(1)

    def look(text: str) -> None:
        reads = writer._db.in_transaction or text.startswith(("SELECT", "PRAGMA", "--"))
        if (at_any or text.startswith("COMMIT") or not reads) and next(statements) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if killed_at is not None:
        writer._db.set_trace_callback(look)
    pipeline = Pipeline(writer, Metrics(), grace_ns=0, resume=False)
    pipeline.recovery.run()
    for number, payload in enumerate(payloads):
        pipeline.ingest(payload, transport="http")
        if number == 1:
            pipeline.tidy()
    pipeline.tidy()
    pipeline.close()


def kills(path: Path, payloads: list[bytes], *, at_any: bool) -> Iterator[int]:
    """Runs in processes of their own, each killed at a later statement, until one ends on its own; `at_any`: every fifth of
    all statements."""
    # Not forks of this process: it may have threads of ClickHouse's engine, and locks that they hold.
    with closing(CleanForks()) as forks:
        for killed_at in count(1, 5 if at_any else 1):
            for part in path.parent.glob(f"{path.name}*"):
                part.unlink()
            code = forks.run(partial(run, at_any=at_any), path, payloads, killed_at)
            if code == 0:
                return
            assert code == -signal.SIGKILL
            yield killed_at


@pytest.mark.parametrize("at_any", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_kill_at_any_step_of_a_commit_changes_nothing_that_is_derived(tmp_path: Path, at_any: bool) -> None:
    payloads = batches()
    run(tmp_path / "undisturbed.db", payloads)
    wanted = derived(tmp_path / "undisturbed.db")
    path = tmp_path / "killed.db"
    for killed_at in kills(path, payloads, at_any=at_any):
        run(path, payloads)  # a sender sends again what was not acknowledged, and what was
        found = derived(path)
        for table, rows in wanted.items():
            assert found[table] == rows, f"{table}, killed at statement {killed_at}"


@pytest.mark.usefixtures("forgets_at_once")
def test_nothing_is_forgotten_without_its_row_while_it_is_behind(tmp_path: Path) -> None:
    """What ended long ago, as after a long outage, and was stored and not judged when it was killed."""
    payloads, path = batches(), tmp_path / "s.db"
    run(tmp_path / "undisturbed.db", payloads)
    pipeline = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0, resume=False, rows_every_ns=10**18)
    for payload in payloads:
        pipeline.ingest(payload, transport="http")
    assert pipeline.spans_behind
    for _ in payloads:
        pipeline.recovery.judge_stored()
        pipeline.tidy()
    assert not pipeline.spans_behind
    pipeline.tidy()
    assert not [each for each in pipeline.detector.finished if each not in pipeline.judge.dirty], "it is forgotten then"
    pipeline.close()
    assert derived(path) == derived(tmp_path / "undisturbed.db")


@pytest.mark.usefixtures("forgets_at_once")
def test_what_comes_while_rows_are_written_is_not_forgotten_without_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that ended long ago, as after an outage."""
    payloads, path = batches(), tmp_path / "s.db"
    run(tmp_path / "undisturbed.db", payloads)
    pipeline = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0, rows_every_ns=10**18, resume=False)
    pipeline.recovery.run()
    for payload in payloads[:3]:
        pipeline.ingest(payload, transport="http")
    write_rows = pipeline.storage.write_rows

    def write_and_hear_more() -> None:
        write_rows()
        for payload in payloads[3:]:
            pipeline.ingest(payload, transport="http")

    monkeypatch.setattr(pipeline.storage, "write_rows", write_and_hear_more)
    pipeline.tidy()
    monkeypatch.setattr(pipeline.storage, "write_rows", write_rows)
    pipeline.tidy()
    pipeline.close()
    assert derived(path) == derived(tmp_path / "undisturbed.db")


def test_a_rebuild_makes_of_the_log_what_was_derived(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(path, batches())
    wanted = derived(path)
    assert list(upkeep.verify(path)) == []
    db = sqlite3.connect(path)
    db.execute("UPDATE requests SET body = x'00', external = 'other' WHERE number % 3 = 0")
    db.execute("DELETE FROM requests WHERE number % 3 = 1")
    db.execute("DELETE FROM savings WHERE at_s % 2 = 0")
    db.execute("UPDATE findings SET body = '{'")
    db.commit()
    db.close()
    said = " ".join(fault.text for fault in upkeep.verify(path))
    for fault in (
        "of requests cannot be read",
        "of findings cannot be read",
        "have no row",
    ):
        assert fault in said
    assert rebuild(path) == last_number(SqliteReader(path))
    assert list(upkeep.verify(path)) == []
    assert derived(path) == wanted
    assert SqliteReader(path).requests(search="chat-0001")


def test_after_kills_of_a_real_sidecar_every_acknowledged_request_has_its_row(
    tmp_path: Path, start_tracer: Callable[..., Tracer]
) -> None:
    """Its rows follow two seconds after the spans, so that each kill comes before those of its last batches."""
    store, acknowledged = tmp_path / "real.db", set()
    for name in ("first", "second", "third"):
        tracer = start_tracer(store=store)
        events = served(Engine(name), from_ns=1_760_000_000 * S, to_ns=1_760_000_030 * S)
        for at in range(0, len(events), 20):
            tracer.post(encoded(events[at : at + 20]))
        acknowledged |= {(event.engine, event.request) for event in events}
        tracer.kill()
    tracer = start_tracer(store=store)
    until(lambda: tracer.get("/api/health")["spans_behind"] == 0)
    rows = SqliteReader(store)
    until(lambda: {(row["engine"], row["request"]) for row in rows.requests(limit=10_000)} == acknowledged)
    assert list(upkeep.verify(store)) == []
