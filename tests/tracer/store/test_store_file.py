"""The store's file: what cannot be used is refused or set aside, an older one is copied before it changes, and it gets
smaller."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from evicted_story import ABOUT, CHUNK
from evicted_story import STORY as EVICTED
from history import history
from msgspec.structs import replace
from stores import last_number
from wire import encoded

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import recovery
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite import opening, quota, upkeep
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"
FINE = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nend"
PAGE = 4096


def hear(pipeline: Pipeline, name: str, text: str = FINE, *, later_s: int = 0) -> None:
    later_ns = later_s * 10**9
    events = [
        replace(event, start_ns=event.start_ns + later_ns, end_ns=event.end_ns + later_ns)
        for event in history(text, request=f"{name}-0123abcd", recorder=name)
    ]
    pipeline.ingest(encoded(events), transport="grpc")


def filled(path: Path, requests: int, *, drifting: int = 0) -> None:
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    for number in range(requests):
        hear(pipeline, f"r{number}", STORY if number < drifting else FINE, later_s=number)
    pipeline.close()


def root_page(path: Path, table: str) -> int:
    db = sqlite3.connect(path)
    ((page,),) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
    db.close()
    return int(page)


def overwrite(path: Path, at: int, length: int = PAGE) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * length)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_acknowledged_once_the_file_is_gone(tmp_path: Path, *, is_replaced: bool) -> None:
    """It would be written into a file without a name. Once it is back, what is sent again is taken."""
    path, moved = tmp_path / "kvtrail.db", tmp_path / "moved.db"
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    hear(pipeline, "before")
    path.rename(moved)
    if is_replaced:
        path.touch()
    with pytest.raises(StoreError, match="moved or deleted"):
        hear(pipeline, "gone")
    assert pipeline.trouble is not None
    moved.replace(path)
    hear(pipeline, "gone")
    assert pipeline.trouble is None
    pipeline.close()
    assert {row["request"] for row in SqliteReader(path).requests(limit=10)} == {"before-0123abcd", "gone-0123abcd"}


@pytest.mark.parametrize("begin", [b"this is no database, and long enough to be seen as none" * 20, b"SQLite"])
def test_a_file_that_is_no_store_is_refused_and_stays(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(begin)
    with pytest.raises(StoreError, match=r"cannot open the store .*notes.txt: file is not a database"):
        SqliteWriter(path)
    assert path.read_bytes() == begin


@pytest.mark.parametrize(
    "made",
    [
        "ALTER TABLE launches DROP COLUMN lost",
        "ALTER TABLE engines ADD COLUMN rack TEXT",
        "DROP TABLE markers; CREATE TABLE markers (request TEXT)",
        "DROP INDEX requests_by_start",
        "PRAGMA user_version=0",
        "PRAGMA user_version=-3",
        "PRAGMA user_version=6",
        "PRAGMA user_version=999",
    ],
)
def test_a_store_of_another_schema_is_refused_with_what_to_do(tmp_path: Path, made: str) -> None:
    path = tmp_path / "s.db"
    filled(path, 1)
    db = sqlite3.connect(path)
    db.executescript(made)
    db.close()
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"choose a new file \(--store\), and read this one with the kvtrail that wrote"
        ):
            SqliteWriter(path)
    with pytest.raises(StoreError, match="choose a new file"):
        list(upkeep.verify(path))
    assert path.read_bytes() == before
    assert not [*tmp_path.glob("*.partly"), *tmp_path.glob("*.damaged*")]


@pytest.mark.parametrize(
    ("where", "is_moved"),
    [("head", False), ("chunks", False), ("requests", False), ("chunks", True), ("requests", True)],
)
def test_a_damaged_store_is_set_aside_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, is_moved: bool
) -> None:
    """Also where no tracer has had it in this place, and it calls itself a store."""
    path = tmp_path / "s.db"
    filled(path, 3)
    overwrite(path, 0 if where == "head" else (root_page(path, where) - 1) * PAGE)
    if is_moved:
        path.with_name("s.db.lock").unlink()
    damaged = path.read_bytes()
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    (aside,) = tmp_path.glob("s.db.damaged-*[0-9]")
    assert aside.read_bytes() == damaged
    assert "is damaged" in caplog.text
    assert aside.name in caplog.text
    hear(pipeline, "later")
    assert [row["request"] for row in SqliteReader(path).requests()] == ["later-0123abcd"]


def test_damage_found_in_use_is_reported_and_set_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    filled(path, 3)
    overwrite(path, (root_page(path, "requests_by_id") - 1) * PAGE)
    monkeypatch.setattr(opening, "CHECKED_BYTES", 0)
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    with pytest.raises(StoreError, match=r"is damaged .* it is set aside when the tracer starts again"):
        hear(pipeline, "later")
    assert pipeline.trouble is not None
    assert "damaged" in pipeline.trouble
    pipeline.close()
    hear(Pipeline(SqliteWriter(path), Metrics()), "later")
    assert len([*tmp_path.glob("s.db.damaged-*[0-9]")]) == 1
    assert not (tmp_path / "s.db.damaged").exists()
    assert len(SqliteReader(path).requests()) == 1


def test_the_oldest_leave_when_the_store_is_too_large_and_the_disk_gets_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrail.tracer.store.sqlite.store.SMALLEST_VACUUM", 4)
    path = tmp_path / "s.db"
    filled(path, 400, drifting=20)
    before = path.stat().st_size
    monkeypatch.setattr(quota, "_SHARED_BYTES", 0)
    writer, reader = SqliteWriter(path, most_bytes=before * 2 // 3), SqliteReader(path)
    steps = list(writer.prune(before_ns=0))
    assert max(steps) <= 64 * len(history(STORY)), "no step drops more than some chunks"
    left = {row["request"] for row in reader.requests(limit=1000)}
    assert 0 < len(left) < 400
    assert len(reader.findings()) == 20, "findings leave last"
    assert all(reader.spans_of(row) for row in reader.requests(limit=1000))
    hear(Pipeline(writer, Metrics()), "latest", later_s=500)
    writer.close()
    assert path.stat().st_size < before * 0.8
    again = SqliteWriter(path, most_bytes=1)
    sum(again.prune(before_ns=0))
    assert reader.findings() == []


def test_between_two_steps_of_pruning_batches_come(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path, 300)
    writer, reader = SqliteWriter(path), SqliteReader(path)
    pipeline = Pipeline(writer, Metrics())
    steps = writer.prune(before_ns=2**62)
    for number in range(5):
        next(steps)
        hear(pipeline, f"new{number}")
    assert len(reader.requests(search="new")) == 5
    sum(steps)
    assert reader.requests() == []


def test_what_was_folded_is_found_as_before(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path, 20)
    reader = SqliteReader(path)
    rows = reader.requests()
    before = [reader.spans_of(row) for row in rows], reader.tail(after=0)
    writer = SqliteWriter(path)
    while writer.fold(some=True):
        pass
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*), count(keys) FROM chunks").fetchone() == (1, 0)
    assert ([reader.spans_of(row) for row in rows], reader.tail(after=0)) == before
    assert reader.tail(after=7)[0][0] == 8
    assert [span for spans in reader.spans(since_ns=0, until_ns=2**62) for span in spans] == [s for _, s in before[1]]


@pytest.mark.usefixtures("forgets_at_once")
def test_what_came_before_it_had_read_back_what_it_knew_is_judged_once(tmp_path: Path) -> None:
    """Also where it is killed before: what was stored is judged at the next start, with its findings and its sums."""
    path = tmp_path / "s.db"
    events = history(STORY, request="long-0123abcd", recorder="long")
    first = Pipeline(SqliteWriter(path), Metrics())
    first.ingest(encoded(events[:2]), transport="grpc")
    first.close()
    writer, metrics = SqliteWriter(path), Metrics()
    pipeline = Pipeline(writer, metrics, resume=False)
    pipeline.ingest(encoded(events[2:4]), transport="grpc")
    pipeline.tidy()
    assert (last_number(SqliteReader(path)), SqliteReader(path).requests()[0]["lookups"]) == (4, 1)
    writer.close()
    writer, metrics = SqliteWriter(path), Metrics()
    pipeline = Pipeline(writer, metrics, resume=False)
    pipeline.ingest(encoded(events[4:]), transport="grpc")
    pipeline.ingest(encoded(history(FINE, request="new-0123abcd", recorder="new")), transport="grpc")
    pipeline.recovery.run()
    pipeline.tidy()
    rows = {row["request"]: (row["complete"], row["verdict"]) for row in SqliteReader(path).requests()}
    assert rows == {"long-0123abcd": (True, "drift"), "new-0123abcd": (True, "ok")}
    assert len(SqliteReader(path).findings()) == 1
    assert b"kvtrail_findings_total{" in metrics.expose("")[0]
    whole = tmp_path / "whole.db"
    at_once = Pipeline(SqliteWriter(whole), Metrics())
    at_once.ingest(encoded(events), transport="grpc")
    at_once.ingest(encoded(history(FINE, request="new-0123abcd", recorder="new")), transport="grpc")
    ever: dict[str, Any] = {"since_ns": 0, "until_ns": 2**62}
    assert SqliteReader(path).savings(**ever) == SqliteReader(whole).savings(**ever)
    at_once.tidy()
    causes = [[row["causes"] for row in SqliteReader(each).requests()] for each in (path, whole)]
    assert causes[0] == causes[1]
    hear(pipeline, "later")
    assert len(SqliteReader(path).requests()) == 3
    pipeline.close()
    again = Pipeline(SqliteWriter(path), Metrics())
    again.tidy()
    assert not again.detector.accounts, "all of them have ended, and have rows"


def test_what_explains_a_prompt_only_after_a_gap_was_given_up_is_in_its_row(tmp_path: Path) -> None:
    """After a restart, the events of requests that had ended are a gap in their recorder's numbers."""
    text = "a: L 100 c0 h0 -> 0\na: A 0\na: end\nb: L 749 c0 h256 -> 256\nb: A 256\nb: S 256+80\nb: S 336+413"
    events = history(text)
    first = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    first.ingest(encoded(events[:-1]), transport="grpc")
    first.close()
    again = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    again.ingest(encoded(events[-1:]), transport="grpc")
    again.tidy()
    (row,) = (row for row in SqliteReader(tmp_path / "s.db").requests() if row["request"].startswith("b-"))
    (split,) = row["causes"]
    parts = [(part["cause"], part["tokens"]) for part in split["parts"]]
    assert parts == [("loaded", 256), ("unknown", 480), ("unaligned", 13)]


@pytest.mark.parametrize(("recalled", "cause"), [(recovery.RECALLED, "evicted"), (0, "unknown")])
def test_what_explained_a_prompt_for_good_stays_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recalled: int, cause: str
) -> None:
    """What came after it is explained as before, if what was said of the caches is not too long ago to be read back."""
    monkeypatch.setattr(recovery, "RECALLED", recalled)
    story = EVICTED.replace("b: end", "b: P\nb: L 121 c64 h64 -> 0\nb: A 0\nb: end")
    events, path = history(story, chunk=CHUNK), tmp_path / "s.db"
    preempted = next(number for number, event in enumerate(events) if event.kind == "kv.preempt")

    def entries() -> list[Any]:
        (row,) = (row for row in SqliteReader(path).requests() if row["request"].startswith("b-"))
        return row["causes"]  # type: ignore[no-any-return]

    first = Pipeline(SqliteWriter(path), Metrics())
    first.ingest(encoded(events[:preempted], ABOUT), transport="grpc")
    first.close()
    (before,) = entries()
    again = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0)
    again.ingest(encoded(events[preempted:], ABOUT), transport="grpc")
    again.tidy()
    known, later = entries()
    assert [part["cause"] for part in known["parts"]] == ["held", "evicted", "unaligned"]
    assert known == before
    assert [part["cause"] for part in later["parts"]] == ["held", cause, "unaligned"]
    again.close()


def test_what_cannot_be_judged_for_a_moment_is_judged_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.serve.receive.recovery.RESUME_S", 0)
    writer = SqliteWriter(tmp_path / "s.db")
    pipeline = Pipeline(writer, Metrics(), resume=False)
    hear(pipeline, "first")
    following, troubles = writer.following, []

    def fails_at_first(*, after: int) -> object:
        troubles.append(pipeline.trouble)
        if len(troubles) < 3:
            raise sqlite3.OperationalError("disk I/O error")
        return following(after=after)

    monkeypatch.setattr(writer, "following", fails_at_first)
    pipeline.recovery.run()
    assert troubles[1] == "stored spans are not judged: disk I/O error"
    assert pipeline.trouble is None
    assert SqliteReader(tmp_path / "s.db").requests()[0]["verdict"] == "ok"


def test_a_sender_is_to_try_again_where_too_much_waits_to_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrail.tracer.serve.receive.recovery.MAX_BEHIND", 4)
    monkeypatch.setattr("kvtrail.tracer.serve.receive.recovery.WAIT_BEHIND_S", 0.1)
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), resume=False)
    hear(pipeline, "first")
    with pytest.raises(StoreError, match="has just started"):
        hear(pipeline, "second")
    assert pipeline.spans_behind == len(history(FINE))
    pipeline.recovery.run()
    assert pipeline.spans_behind == 0
    hear(pipeline, "second")
    assert len(SqliteReader(tmp_path / "s.db").requests()) == 2


@pytest.mark.usefixtures("forgets_at_once")
def test_requests_that_are_forgotten_at_once_have_rows(tmp_path: Path) -> None:
    """What was held up on its way ended long ago; and where many come at once, few accounts are held."""
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), rows_every_ns=10**18, max_requests=40)
    for number in range(100):
        hear(pipeline, f"r{number}")
    pipeline.tidy()
    assert not pipeline.detector.accounts
    assert len(SqliteReader(tmp_path / "s.db").requests(limit=1000)) == 100


def test_unwritten_rows_are_made_again_after_a_kill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As production has it: the rows of requests come a moment after their spans."""
    caplog.set_level(logging.WARNING)
    path = tmp_path / "s.db"
    events = history(STORY, request="late-0123abcd", recorder="late")
    writer = SqliteWriter(path)
    pipeline = Pipeline(writer, Metrics(), rows_every_ns=10**18)
    hear(pipeline, "first")
    pipeline.ingest(encoded(events[:4]), transport="grpc")
    pipeline.ingest(encoded(events[4:]), transport="grpc")
    assert {row["request"] for row in SqliteReader(path).requests()} == {"late-0123abcd", "first-0123abcd"}, (
        "a finding's"
    )
    hear(pipeline, "second")
    assert len(SqliteReader(path).requests()) == 2
    writer.close()  # without what `Pipeline.close` writes
    again = Pipeline(SqliteWriter(path), Metrics())
    again.tidy()
    rows = {row["request"]: row for row in SqliteReader(path).requests()}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "first-0123abcd": "ok", "late-0123abcd": "drift", "second-0123abcd": "ok",
    }  # fmt: skip
    assert SqliteReader(path).totals()["findings"] == 1
    again.ingest(encoded(events[4:]), transport="grpc")
    assert last_number(SqliteReader(path)) == len(events) + 2 * len(history(FINE)), "it was known by its digest"
