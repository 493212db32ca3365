"""Stores of an earlier schema, of a later one, and damaged ones: what is said of them, and what they hold once opened."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from history import START_NS, goodbyes, history
from wire import encoded

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.rebuild import rebuild
from kvtrail.tracer.store import StoreError, damage
from kvtrail.tracer.store.request_rows import StoredRequest
from kvtrail.tracer.store.sqlite import upkeep
from kvtrail.tracer.store.sqlite.opening import SCHEMA_VERSION
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter
from pins.answers import digest

STORIES = {
    "well": "start 96 of a b c\nL 96 c0 h64 -> 64\nA 64 [1-6]\nS 64+32\nend",
    "aborted": "start 96 of a b d\nL 96 c0 h64 -> 64\nA 64 [1-6]\nend aborted",
    "stale": "L 750 c384 h256 -> 256 cached\nA 256 !AssertionError: Mismatch",
}
CHANGES: Mapping[str, tuple[str, ...]] = {
    "today's": (),
    "an earlier schema": (f"PRAGMA user_version={SCHEMA_VERSION - 1}",),
    "a later schema": (f"PRAGMA user_version={SCHEMA_VERSION + 1}",),
    "another program's": ("PRAGMA application_id=7",),
    "damaged rows": ("UPDATE requests SET body = x'00' WHERE number = 1",),
    "a damaged log": ("UPDATE chunks SET body = x'00' WHERE number = (SELECT max(number) FROM chunks)",),
    "rows that are lost": ("DELETE FROM requests WHERE number = 2", "DELETE FROM findings"),
}
"""By name, what makes such a store of one of today's."""
BESIDE = (".lock", "-wal", "-shm")
"""What the names of files end with that a store has beside it while it is used."""


def old_stores() -> dict[str, Any]:
    """Each of these stores."""
    found = {}
    for name, changes in CHANGES.items():
        with tempfile.TemporaryDirectory() as folder, patch.object(damage, "_met", {}):
            path = Path(folder) / "s.db"
            _fill(path)
            db = sqlite3.connect(path)
            for change in changes:
                db.execute(change)
            db.commit()
            db.close()
            found[name] = _opened(path)
    return found


def _fill(path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0)
    for name, text in STORIES.items():
        events = history(text, request=f"{name}-0123abcd", engine=name, recorder=name)
        pipeline.ingest(encoded([*events, *goodbyes(events)]), transport="grpc")
        pipeline.tidy()
    pipeline.close()


def _opened(path: Path) -> dict[str, Any]:
    """What `verify` says before and after it is opened, what it holds, and what a rebuild makes of it."""
    said: dict[str, Any] = {"verified": _said(path, lambda: [fault.text for fault in upkeep.verify(path)])}
    said["opened"] = _said(path, lambda: SqliteWriter(path).close())
    if said["opened"] is not None:
        return said
    return said | {
        "files": sorted(each.name for each in path.parent.iterdir() if not each.name.endswith(BESIDE)),
        "verified again": _said(path, lambda: [fault.text for fault in upkeep.verify(path)]),
        "holds": _held(path),
        "rebuilt": _said(path, lambda: rebuild(path)),
        "holds then": _held(path),
    }


def _held(path: Path) -> dict[str, Any]:
    reader = SqliteReader(path)
    every = {"since_ns": START_NS - 10**9, "until_ns": START_NS + 10**12}
    return {
        "totals": _said(path, reader.totals),
        "requests": _said(
            path,
            lambda: {r["request"]: f"{r['verdict']} {r.status} {digest(_of_account(r))}" for r in reader.requests()},
        ),
        "findings": _said(path, lambda: {f["request"]: f"{f['rule']} {digest(f)}" for f in reader.findings()}),
        "measures": _said(path, lambda: _measures(path)),
        "launches": _said(path, lambda: len(reader.launches())),
        "markers": _said(path, lambda: len(reader.markers(limit=9, **every))),
        "spans": _said(path, lambda: sum(len(some) for some in reader.spans(**every))),
    }


def _of_account(request: StoredRequest) -> dict[str, Any]:
    account = request.account()
    account["outcome"] = account.pop("reason")
    return account


def _measures(path: Path) -> list[Any]:
    db = sqlite3.connect(path)
    try:
        return db.execute("SELECT prefix, ending FROM request_measures ORDER BY number").fetchall()
    finally:
        db.close()


def _said(path: Path, ask: Any) -> Any:
    """An answer, or the error instead of it, without the file's place."""
    try:
        return ask()
    except (StoreError, sqlite3.DatabaseError, ValueError) as error:
        return f"{type(error).__name__}: {error}".replace(str(path.parent), "")
