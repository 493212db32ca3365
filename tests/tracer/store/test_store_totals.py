"""The totals are those of the rows: after changes, retention, a restart, a kill in the middle of writing."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clean_forks import CleanForks
from history import START_NS, history
from wire import encoded

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

COUNTED = (
    "count(*), coalesce(sum(ended_ns IS NULL), 0), coalesce(sum(lookups), 0), coalesce(sum(longest_match), 0),"
    " coalesce(sum(loaded), 0), coalesce(sum(stored), 0), coalesce(sum(epoch), 0), coalesce(sum(findings > 0), 0)"
)
NAMES = ("requests", "running", "lookups", "matched", "loaded", "stored", "preemptions", "drifting")


def check(path: Path) -> dict[str, int]:
    """The totals, after comparing them with a look at every row."""
    db = sqlite3.connect(path)
    stored = SqliteReader(path).totals()
    counted = dict(zip(NAMES, db.execute(f"SELECT {COUNTED} FROM requests").fetchone(), strict=True))
    assert {name: stored[name] for name in NAMES} == counted
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
        writer.write(Batch(requests=[row_of(account(dice.randrange(400), dice)) for _ in range(60)]))
        if round_ % 4 == 3:
            writer.fold(some=True)
        if round_ % 5 == 4:
            sum(writer.prune(before_ns=round_ * 10))
        check(path)
    assert check(path)["requests"] > 0
    sum(writer.prune(before_ns=10**6))
    assert set(check(path).values()) == {0}
    assert SqliteReader(path).requests(search="req") == []


def test_what_is_not_stored_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    writer = SqliteWriter(path)
    dice = random.Random(12)
    writer.write(Batch(requests=[row_of(account(1, dice))]))
    before = check(path)
    left_out = writer.write(Batch(requests=[row_of(account(2, dice)), row_of({**account(1, dice), "lookups": 2**63})]))
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
    again.storage.prune(retain_ns=time.time_ns() - START_NS - 10**12)
    assert check(tmp_path / "s.db")["requests"] == 0


def write_until_killed(path: Path, rounds: int, looks: int) -> None:
    """Write, and kill this process in the middle of a statement, thousands of SQLite instructions after these rounds."""
    writer, dice = SqliteWriter(path), random.Random(13)

    def look() -> int:
        nonlocal looks
        looks -= 1
        if not looks:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    for round_ in count():
        if round_ == rounds:
            writer._db.set_progress_handler(look, 1000)
        writer.write(Batch(requests=[row_of(account(dice.randrange(round_ * 3 + 50), dice)) for _ in range(40)]))
        if round_ % 4 == 3:
            writer.fold(some=True)
            sum(writer.prune(before_ns=round_))


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    with closing(CleanForks()) as forks:
        yield forks


@pytest.mark.parametrize(("rounds", "looks"), [(3, 1), (20, 20), (40, 150)])
def test_after_a_kill_in_the_middle_of_writing(tmp_path: Path, forks: CleanForks, rounds: int, looks: int) -> None:
    path = tmp_path / "s.db"
    assert forks.run(write_until_killed, path, rounds, looks) == -signal.SIGKILL
    writer = SqliteWriter(path)
    stored = check(path)
    assert stored["requests"] > 0
    writer.write(Batch(requests=[row_of(account(10**6, random.Random(14)))]))
    assert check(path)["requests"] == stored["requests"] + 1
    writer.close()
