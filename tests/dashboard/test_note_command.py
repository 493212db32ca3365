"""`kvtrail note`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from kvtrail.dashboard import client
from kvtrail.dashboard.note_command import note
from kvtrail.tracer.serve.access import Access
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.roles import TokenFile
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

MINUTE_NS = 60 * 10**9


@pytest.fixture
def tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteReader]:
    """A tracer at the usual address, that wants a token to change anything and another one to read."""
    for role in ("change", "read"):
        (tmp_path / role).write_text(f"{role}-token\n")
    pipeline, reader = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics()), SqliteReader(tmp_path / "s.db")
    tokens = Access([TokenFile.of(f"{role}={tmp_path / role}") for role in ("change", "read")])
    asking = TestClient(application(pipeline, reader, pipeline.metrics, tokens=tokens))

    def answer(request: httpx.Request) -> httpx.Response:
        found = asking.request(request.method, str(request.url), content=request.content, headers=dict(request.headers))
        return httpx.Response(found.status_code, content=found.content, headers=dict(found.headers))

    monkeypatch.setattr(client, "Tracer", partial(client.Tracer, transport=httpx.MockTransport(answer)))
    yield reader
    pipeline.close()


def notes(reader: SqliteReader) -> list[tuple[str, int]]:
    found = reader.markers(since_ns=0, until_ns=time.time_ns(), limit=10)
    return [(each.text, each.at_ns) for each in found]


def call(tmp_path: Path, *arguments: str, role: str = "change") -> tuple[int, str]:
    done = CliRunner().invoke(note, [*arguments, "--token-file", str(tmp_path / role)])
    return done.exit_code, done.output


def test_a_note_is_kept_at_its_moment(tracer: SqliteReader, tmp_path: Path) -> None:
    code, said = call(tmp_path, "router v2", "--at", "2026-11-20T14:59")
    assert (code, said) == (0, "noted at 2026-11-20 14:59:00 UTC\n")
    before_ns = time.time_ns()
    assert call(tmp_path, "load test", "--ago", "10m")[0] == 0
    (first, at_ns), (second, later_ns) = notes(tracer)
    assert (first, second) == ("router v2", "load test")
    assert at_ns == 1_795_186_740 * 10**9
    assert 0 <= later_ns - (before_ns - 10 * MINUTE_NS) < MINUTE_NS


@pytest.mark.parametrize(
    ("arguments", "role", "why"),
    [
        (["x", "--engine", "nobody"], "change", "no engine has the id or the name 'nobody'"),
        ([" "], "change", "the note has no text"),
        (["x"], "read", "may not change anything. Give --token-file one of the role `change`."),
        (["x", "--at", "noon"], "change", "'noon' is not a time such as 2026-11-24T14:59"),
        (["x", "--at", "2026-11-20", "--ago", "5m"], "change", "--at and --ago say the same: give one of them"),
    ],
)
def test_what_is_wrong_with_a_note_is_said(
    tracer: SqliteReader, tmp_path: Path, arguments: list[str], role: str, why: str
) -> None:
    code, said = call(tmp_path, *arguments, role=role)
    assert code != 0
    assert why in said
    assert notes(tracer) == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "127.0.0.1:1", "http://["])
def test_a_tracer_that_is_away_is_named(address: str) -> None:
    done = CliRunner().invoke(note, ["x", "--tracer", address])
    assert done.exit_code == 1
    assert f"tracer at {address}" in done.output
    assert "Traceback" not in done.output
