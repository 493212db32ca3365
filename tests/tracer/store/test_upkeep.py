"""Who may use a store, and what an operator does with it: copies that are whole, and what is put back in its place."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from history import history
from processes import Tracer
from test_store_file import filled, hear, overwrite, root_page
from wire import encoded

from kvtrail.__main__ import main
from kvtrail.tracer.commands.audit import reader_of
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9


def store(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)])


def requests_in(path: Path) -> set[str]:
    return {row["request"] for row in SqliteReader(path).requests(limit=10_000)}


def post_all(tracer: Tracer, batches: list[bytes]) -> None:
    for batch in batches:
        tracer.post(batch)


@pytest.mark.parametrize("name", ["symlink", "folder", "hard link", "moved"])
def test_a_store_has_one_writer_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / "s.db", tmp_path / "other.db"
    writer = SqliteWriter(path)
    if name == "symlink":
        other.symlink_to(path)
    elif name == "folder":
        (tmp_path / "here").symlink_to(tmp_path)
        other = tmp_path / "here" / "s.db"
    elif name == "hard link":
        other.hardlink_to(path)
    else:
        path.rename(other)
    with pytest.raises(StoreError, match="another tracer writes to the store"):
        SqliteWriter(other)
    writer.close()
    if name != "moved":
        SqliteWriter(path).close()


def test_a_store_is_its_owners_alone_also_where_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    before = os.umask(0o022)
    try:
        filled(path, 1)
        path.chmod(0o644)
        pipeline = Pipeline(SqliteWriter(path), Metrics())
        hear(pipeline, "later")
        found = {part.name: oct(part.stat().st_mode & 0o777) for part in tmp_path.iterdir()}
        assert found == dict.fromkeys(("s.db", "s.db-wal", "s.db-shm", "s.db.lock"), "0o600")
        pipeline.close()
    finally:
        os.umask(before)


def test_only_the_owner_can_read_what_a_sidecar_writes(start_tracer: Callable[..., Tracer]) -> None:
    assert start_tracer().store.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "made",
    ["PRAGMA user_version=0", "PRAGMA user_version=3", "PRAGMA application_id=252006675", "PRAGMA user_version=999"],
)
def test_a_sqlite_file_of_another_program_is_refused_and_stays(tmp_path: Path, made: str) -> None:
    path = tmp_path / "bookmarks.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.execute(made)
    db.commit()
    db.close()
    before = path.read_bytes()
    for use in (SqliteWriter, SqliteWriter, reader_of):  # a second start, too
        with pytest.raises(StoreError, match="of another program"):
            use(path)
    assert path.read_bytes() == before
    assert not (tmp_path / "bookmarks.db.lock").exists()
    assert store("verify", "--store", path).exit_code == 2


def test_a_file_that_is_no_database_is_not_set_aside_by_the_second_start(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and no database" * 10)
    for _ in range(2):
        with pytest.raises(StoreError, match="not a database"):
            SqliteWriter(path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_store_in_use_is_verified_and_not_rebuilt(start_tracer: Callable[..., Tracer]) -> None:
    tracer = start_tracer()
    post_all(tracer, [encoded(history("L 749 c0 h256 -> 256\nA 256\nend"))])
    assert store("verify", "--store", tracer.store).exit_code == 0
    in_use = store("rebuild", "--store", tracer.store)
    assert (in_use.exit_code, "; stop it first" in in_use.output, "--store" in in_use.output) == (2, True, False)


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.db"
    filled(path, 3)
    overwrite(path, (root_page(path, "requests") - 1) * 4096)
    found = store("verify", "--store", path)
    assert (found.exit_code, "the file is damaged" in found.output) == (1, True)


FOREIGN = {
    "the trigger 'log_end_moves'": "CREATE TRIGGER log_end_moves AFTER INSERT ON chunks BEGIN DELETE FROM findings; END",
    "the view 'spans'": "CREATE VIEW spans AS SELECT * FROM chunks",
    "the trigger 'request_measures_leave'": "DROP TRIGGER request_measures_leave;"
    " CREATE TRIGGER request_measures_leave AFTER DELETE ON requests BEGIN DELETE FROM findings; END",
    "the view 'markers'": "DROP TABLE markers; CREATE VIEW markers AS SELECT * FROM launches",
    "the table 'markers'": "DROP TABLE markers; CREATE VIRTUAL TABLE markers USING fts5 (id)",
}


@pytest.mark.parametrize("said", FOREIGN)
def test_a_store_with_what_would_run_by_itself_is_refused(tmp_path: Path, said: str) -> None:
    path = tmp_path / "s.db"
    filled(path, 1)
    db = sqlite3.connect(path)
    db.executescript(FOREIGN[said])
    db.close()
    before = path.read_bytes()
    for arguments in (("verify", "--store", path), ("rebuild", "--store", path, "--force")):
        result = store(*arguments)
        assert (result.exit_code, said in result.output) == (2, True), (arguments, result.output)
        assert "choose a new file (--store)" in result.output, arguments
    with pytest.raises(StoreError, match=said):
        SqliteWriter(path)
    assert path.read_bytes() == before


def test_a_damaged_log_is_not_rebuilt_unless_that_is_asked_for(tmp_path: Path) -> None:
    """What a rebuild would drop cannot be made again, as what is derived can."""
    path = tmp_path / "s.db"
    filled(path, 3)
    db = sqlite3.connect(path)
    ((rows,),) = db.execute("SELECT count(*) FROM requests")
    db.execute("UPDATE chunks SET body = x'00' WHERE number = (SELECT min(number) FROM chunks)")
    db.commit()
    db.close()
    found = store("verify", "--store", path)
    assert found.exit_code == 1
    assert "spans of the log cannot be read" in found.output
    assert "`kvtrail store rebuild --force` judges the readable spans" in found.output
    refused = store("rebuild", "--store", path)
    assert (refused.exit_code, "data is lost" in refused.output) == (2, True)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM requests").fetchall() == [(rows,)]
    forced = store("rebuild", "--store", path, "--force")
    assert (forced.exit_code, "the readable ones of" in forced.output) == (0, True)


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    for arguments in (
        ("verify", tmp_path / "copy"),
        ("rebuild", tmp_path / "copy"),
        ("mend",),
    ):
        assert store(*arguments).exit_code == 2
    for action in ("verify", "rebuild"):
        result = store(action, "--store", tmp_path / "none.db")
        assert (result.exit_code, "there is no store" in result.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_who_asks_does_not_wait_behind_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be written at once is; the rest of it comes later."""
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), rows_every_ns=10**18)
    monkeypatch.setattr("kvtrail.tracer.serve.receive.storing.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("kvtrail.tracer.serve.receive.storing.MAX_CATCH_UP_S", 0.0)
    for number in range(9):
        hear(pipeline, f"r{number}")
    written = len(requests_in(tmp_path / "s.db"))
    pipeline.storage.catch_up()
    assert len(requests_in(tmp_path / "s.db")) - written == 1
    with pipeline._lock:  # as a batch holds it
        asking = threading.Thread(target=pipeline.storage.catch_up)
        asking.start()
        asking.join()
    with pipeline.storage._catching_up:
        pipeline.storage.catch_up()
    pipeline.close()
    assert len(requests_in(tmp_path / "s.db")) == 9
