"""The totals are those of the rows: after changes, retention, a restart, a kill in the middle of writing, an upgrade."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from history import START_NS, history
from wire import encoded

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.serve.metrics import Metrics
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.store import Batch, StoreError
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

COUNTED = (
    "count(*), coalesce(sum(ended_ns IS NULL), 0), coalesce(sum(lookups), 0), coalesce(sum(longest_match), 0),"
    " coalesce(sum(loaded), 0), coalesce(sum(stored), 0), coalesce(sum(epoch), 0), coalesce(sum(findings > 0), 0)"
)
NAMES = ("requests", "running", "lookups", "matched", "loaded", "stored", "preemptions", "drifting")


def check(path: Path) -> dict[str, int]:
    """The totals, after comparing them with a look at every row; every request is found by its ids."""
    db = sqlite3.connect(path)
    stored = SqliteReader(path).totals()
    counted = dict(zip(NAMES, db.execute(f"SELECT {COUNTED} FROM requests").fetchone(), strict=True))
    assert {name: stored[name] for name in NAMES} == counted
    for status, verdict, requests in db.execute("SELECT status, verdict, requests FROM request_totals"):
        rows = db.execute("SELECT count(*) FROM requests WHERE status = ? AND verdict = ?", (status, verdict))
        assert rows.fetchone() == (requests,)
    held = db.execute("SELECT number, request FROM requests").fetchall()
    entered = db.execute("SELECT rowid FROM request_ids WHERE request_ids MATCH '\"req\"' ORDER BY rowid").fetchall()
    assert [number for (number,) in entered] == sorted(number for number, request in held if "req" in request)
    db.close()
    return stored


def account(number: int, dice: random.Random) -> dict[str, Any]:
    stored = Account(f"e-{number % 3}", f"req-{number}", external=f"x-{number}").as_dict()
    numbers = {name: dice.randrange(1000) for name in ("lookups", "longest_match", "loaded", "stored", "epoch")}
    ended_ns = dice.choice([None, number + 5])
    status = "running" if ended_ns is None else dice.choice(["finished", "failed"])
    verdict, findings = dice.choice([("ok", 0), ("drift", 2), ("unknown", 0)])
    return {
        **stored, **numbers, "started_ns": number, "last_ns": number + 5, "ended_ns": ended_ns, "status": status,
        "verdict": verdict, "findings": findings,
    }  # fmt: skip


def test_after_every_change_and_after_retention(tmp_path: Path) -> None:
    dice = random.Random(11)
    path = tmp_path / "s.db"
    writer = SqliteWriter(path)
    for round_ in range(20):
        writer.write(Batch(accounts=[account(dice.randrange(400), dice) for _ in range(60)]))
        if round_ % 5 == 4:
            writer.prune(before_ns=round_ * 10)
        check(path)
    assert check(path)["requests"] > 0
    writer.prune(before_ns=10**6)
    assert set(check(path).values()) == {0}
    assert SqliteReader(path).requests(search="req") == []


def test_what_is_not_stored_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    writer = SqliteWriter(path)
    dice = random.Random(12)
    writer.write(Batch(accounts=[account(1, dice)]))
    before = check(path)
    left_out = writer.write(Batch(accounts=[account(2, dice), {**account(1, dice), "lookups": 2**63}]))
    assert len(left_out) == 1
    assert check(path)["requests"] == before["requests"] + 1


def test_after_a_restart(tmp_path: Path) -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend", request="req-1")
    writer = SqliteWriter(tmp_path / "s.db")
    Pipeline(writer, Metrics()).ingest(encoded(events[:4]), transport="grpc")
    assert check(tmp_path / "s.db")["running"] == 1
    writer.close()
    again = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    again.ingest(encoded(events[4:]), transport="grpc")
    stored = check(tmp_path / "s.db")
    assert (stored["requests"], stored["running"], stored["lookups"], stored["drifting"]) == (1, 0, 2, 1)
    again.prune(retain_ns=time.time_ns() - START_NS - 10**12)
    assert check(tmp_path / "s.db")["requests"] == 0


WRITING = """
import random, sys
from pathlib import Path
from test_store_totals import account
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.sqlite.store import SqliteWriter
writer, dice = SqliteWriter(Path(sys.argv[1])), random.Random(13)
for round_ in range(10**6):
    writer.write(Batch(accounts=[account(dice.randrange(round_ * 3 + 50), dice) for _ in range(40)]))
    if round_ % 4 == 3:
        writer.prune(before_ns=round_)
    print(round_, flush=True)
"""


@pytest.mark.parametrize("after", [3, 20, 60])
def test_after_a_kill_in_the_middle_of_writing(tmp_path: Path, after: int) -> None:
    path = tmp_path / "s.db"
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{root / 'tests'}:{Path(__file__).parent}"},
    )
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if int(line) == after:
                time.sleep(random.random() / 100)
                process.send_signal(signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    writer = SqliteWriter(path)
    stored = check(path)
    assert stored["requests"] > 0
    writer.write(Batch(accounts=[account(10**6, random.Random(14))]))
    assert check(path)["requests"] == stored["requests"] + 1
    writer.close()


OLD = """
CREATE TABLE resources (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE);
CREATE TABLE requests (
    request TEXT NOT NULL, engine TEXT NOT NULL, external TEXT NOT NULL, trace_id TEXT NOT NULL,
    status TEXT NOT NULL, verdict TEXT NOT NULL, findings INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER,
    lookups INTEGER NOT NULL, longest_match INTEGER NOT NULL, loaded INTEGER NOT NULL,
    stored INTEGER NOT NULL, epoch INTEGER NOT NULL,
    account TEXT NOT NULL,
    PRIMARY KEY (request, engine)
) WITHOUT ROWID;
CREATE INDEX requests_by_start ON requests (started_ns);
CREATE INDEX requests_by_end ON requests (last_ns);
CREATE INDEX requests_by_external ON requests (external);
CREATE INDEX requests_open ON requests (engine) WHERE ended_ns IS NULL;
CREATE TABLE findings (
    id TEXT PRIMARY KEY, rule TEXT NOT NULL, severity TEXT NOT NULL, request TEXT NOT NULL, engine TEXT NOT NULL,
    last_ns INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX findings_by_time ON findings (last_ns);
CREATE INDEX findings_by_request ON findings (request);
PRAGMA user_version=1;
"""
"""What of a store of schema 1 has changed since."""


def test_a_store_of_the_first_schema_is_made_over(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    dice = random.Random(15)
    stored = [account(number, dice) for number in dice.sample(range(1000), 300)]
    columns = ("request", "engine", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns",
               "ended_ns", "lookups", "longest_match", "loaded", "stored", "epoch")  # fmt: skip
    finding = {"id": "f", "rule": "stale-lookup", "connector": "C", "engine": "e-1", "request": "req-1"}
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(OLD)
    db.executemany(
        f"INSERT INTO requests VALUES ({', '.join('?' * 16)})",
        ((*(each[name] for name in columns), json.dumps(each)) for each in stored),
    )
    db.execute(
        "INSERT INTO findings VALUES ('f', 'stale-lookup', 'crash', 'req-1', 'e-1', 5, ?)", (json.dumps(finding),)
    )
    db.close()
    writer = SqliteWriter(path)
    assert check(path)["requests"] == 300
    reader = SqliteReader(path)
    assert reader.requests(limit=1000) == sorted(stored, key=lambda each: -each["started_ns"])
    some = stored[17]
    assert some in reader.requests(search=some["external"])
    assert reader.findings() == [finding]
    assert reader.findings_places() == {"rules": ["stale-lookup"], "connectors": ["C"], "engines": ["e-1"]}
    writer.write(Batch(accounts=[{**some, "lookups": some["lookups"] + 7}]))
    assert check(path)["lookups"] == sum(each["lookups"] for each in stored) + 7
    writer.close()
    SqliteWriter(path).close()
    assert check(path)["requests"] == 300, "made over once"


def test_a_makeover_that_fails_leaves_the_old_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(OLD)
    before = db.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    monkeypatch.setattr("kvtrail.tracer.store.sqlite.requests.ids.INSERT_ALL", "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(StoreError, match="no such table: nowhere"):
        SqliteWriter(path)
    assert db.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall() == before
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
