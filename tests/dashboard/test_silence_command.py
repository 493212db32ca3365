"""Silences from a terminal and from pages: what is asked for, and how they read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from kvtrail.__main__ import main
from kvtrail.dashboard import client
from kvtrail.dashboard.client import Tracer, TracerRefused
from kvtrail.dashboard.content import silences
from kvtrail.tracer.model.silences import MATCHERS
from kvtrail.tracer.serve.access import Access
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.roles import TokenFile
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

ADD = ["silence", "add", "--rule", "stale-lookup", "--why", "fixed in 0.33", "--by", "ana"]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    """A client of a sidecar without a network, which the command uses, too. A token is needed to change anything."""
    (tmp_path / "read").write_text("a-token-that-may-read\na-token-that-may-both\n")
    (tmp_path / "change").write_text("a-token-that-may-both\n")
    access = Access(TokenFile.of(f"{role}={tmp_path / role}") for role in ("read", "change"))
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    app = application(pipeline, SqliteReader(tmp_path / "s.db"), pipeline.metrics, tokens=access)
    asking = TestClient(app)

    def answer(request: httpx.Request) -> httpx.Response:
        found = asking.request(request.method, str(request.url), content=request.content, headers=dict(request.headers))
        return httpx.Response(found.status_code, content=found.content, headers=dict(found.headers))

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(client, "Tracer", partial(Tracer, transport=transport))
    monkeypatch.setenv("KVTRAIL_SILENCE_TOKEN_FILE", str(tmp_path / "change"))
    yield Tracer("http://127.0.0.1:4318", token_file=tmp_path / "read", transport=transport)
    pipeline.close()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_a_silence_is_added_listed_and_ended_in_a_terminal(served: Tracer) -> None:
    assert run("silence", "list") == (0, "There are no silences.\n")
    code, added = run(*ADD, "--vllm-version", "0.32.0", "--for", "7d")
    (made,) = served.silences()
    assert (code, added.splitlines()) == (0, silences.lines([made]))
    assert added.startswith(f"{made['id']}  active until ")
    assert ": rule stale-lookup, vLLM 0.32.0; never seen\n    ana: fixed in 0.33\n" in added
    assert made["ends_ns"] - made["began_ns"] == pytest.approx(7 * 86_400e9, rel=0.01)
    assert run("silence", "list") == (0, added)
    code, ended = run("silence", "expire", made["id"])
    assert (code, ended.startswith(f"{made['id']}  ended ")) == (0, True)
    assert run("silence", "list") == (0, ended), "it stays listed"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([*ADD], 2, "either --for, such as --for 7d, or --until-ended"),
        ([*ADD, "--for", "7d", "--until-ended"], 2, "either --for, such as --for 7d, or --until-ended"),
        (["silence", "add", "--for", "1h", "--why", "x"], 2, "say what it covers"),
        (["silence", "add", "--rule", "full-hit", "--for", "1h"], 2, "say why these findings are known"),
        (["silence", "add", "--rule", "full-hti", "--for", "1h"], 2, "there is no rule 'full-hti'"),
        (["silence", "expire"], 2, "expire takes the ID of a silence"),
        (["silence", "list", "x"], 2, "list takes no ID"),
        (["silence", "expire", "a/../b"], 1, "Not Found"),
        (["silence", "expire", "none"], 1, "there is no silence 'none'; GET /api/silences lists them"),
        ([*ADD, "--for", "0s"], 1, "'ends_ns' is in the past"),
    ],
)
def test_what_is_missing_or_wrong_is_named(served: Tracer, arguments: list[str], code: int, says: str) -> None:
    exit_code, output = run(*arguments)
    assert exit_code == code, output
    assert says in " ".join(output.replace("│", " ").split())
    assert served.silences() == []


def test_a_read_only_token_is_distinguished(served: Tracer) -> None:
    with pytest.raises(TracerRefused, match=r"may not change anything\. Give --token-file one of the role `change`\."):
        served.silence(silences.asked({"rule": "full-hit"}, lasts=None, why="x", by="y", now_ns=time.time_ns()))


def test_every_matcher_has_a_name() -> None:
    assert silences.NAMES.keys() == {*MATCHERS}


def test_a_form_offers_what_there_is() -> None:
    engines = [{"engine": "e-1", "name": "alpha", "version": "0.32.0", "kvtrail": ""}]
    found = {"engines": ["e-1", "gone"], "connectors": ["LMCache"]}
    assert silences.choices([{"id": "full-hit"}], engines, found) == {
        "rule": {"full-hit": "full-hit"},
        "engine": {"e-1": "alpha", "gone": "gone"},
        "connector": {"LMCache": "LMCache"},
        "vllm_version": {"0.32.0": "0.32.0"},
        "kvtrail_version": {},
    }
    assert silences.LABELS.keys() == {*MATCHERS}


def test_a_silence_in_words() -> None:
    made: dict[str, Any] = dict.fromkeys(MATCHERS, "") | {
        "id": "1", "engine": "e-1", "rule": "full-hit", "ends_ns": None, "is_active": True, "why": "#7", "by": "ana",
        "last_seen_ns": None,
    }  # fmt: skip
    assert silences.covers(made, {"e-1": "alpha"}) == "rule full-hit, engine alpha"
    assert silences.state(made) == "active until it is ended"
    assert silences.about({**made, "began_ns": 60 * 10**9}) == (
        "Active until it is ended; by ana, 1970-01-01 00:01 UTC; no finding meets it so far."
    )
    assert silences.sentence(made) == "Silenced until it is ended by ana: #7"
    over = {**made, "is_active": False, "ends_ns": int(timedelta(days=1).total_seconds() * 1e9)}
    (row,) = silences.ended_rows([{**over, "began_ns": 0}], {})
    assert (row["Covered"], row["Ended (UTC)"]) == ("rule full-hit, engine e-1", "1970-01-02 00:00")
    assert silences.report({**over, "began_ns": 0}).startswith(
        "No longer silenced: rule full-hit, engine e-1. Ended 1970"
    )
    assert silences.state(over) == "ended 1970-01-02 00:00 UTC"
