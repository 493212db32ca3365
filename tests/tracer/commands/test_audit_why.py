"""`kvtrail audit --why`: why the tokens of one request were reused or computed."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import run
from evicted_story import ABOUT, CHUNK, STORY
from history import goodbyes, history
from wire import encoded, to_json_line

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter


@pytest.fixture
def trace(tmp_path: Path) -> str:
    events = history(STORY, chunk=CHUNK)
    path = tmp_path / "t.jsonl"
    payload = encoded([*events, *goodbyes(events)], ABOUT)
    path.write_text(to_json_line(payload) + "\n")
    return str(path)


def test_each_part_is_shown_with_its_tokens_and_its_reason(trace: str) -> None:
    result = run("audit", "--why", "b-cmpl-1-0-0123abcd", trace)
    assert result.exit_code == 0
    first, *parts = result.output.strip().splitlines()
    assert first.startswith("request b-cmpl-1-0-0123abcd, admitted at ")
    assert first.endswith(": 56 tokens of 120 were computed: 57 % evicted, 43 % unaligned.")
    assert [" ".join(part.split()[:6]) for part in parts] == [
        "0 to 64 53 % held",
        "64 to 96 27 % evicted",
        "96 to 120 20 % unaligned:",
    ]
    assert "evicted from the connector's store" in parts[1]


def test_the_callers_id_will_do_and_json_has_the_same_parts(trace: str) -> None:
    (entry,) = json.loads(run("audit", "--json", "--why", "b-cmpl-1-0", trace).output)
    assert [(part["cause"], part["tokens"]) for part in entry["causes"][0]["parts"]] == [
        ("held", 64),
        ("evicted", 32),
        ("unaligned", 24),
    ]
    assert entry["causes"][0]["final"] is True


def test_a_request_that_is_not_there_is_an_error(trace: str) -> None:
    result = run("audit", "--why", "nobody", trace)
    assert result.exit_code == 2
    assert "no request has the id 'nobody'" in result.output


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """That of a tracer, with a request of the caller's id `b-cmpl-1-0`."""
    path = tmp_path / "s.db"
    pipeline = Pipeline(SqliteWriter(path), Metrics())
    events = history(STORY, chunk=CHUNK)
    pipeline.ingest(encoded([*events, *goodbyes(events)], ABOUT), transport="grpc")
    pipeline.close()
    return path


@pytest.mark.parametrize("name", ["b-cmpl-1-0-0123abcd", "b-cmpl-1-0"])
def test_a_store_answers_from_its_index_what_its_trace_answers(store: Path, trace: str, name: str) -> None:
    with patch.object(SqliteReader, "spans", side_effect=AssertionError("it read the spans of the whole store")):
        result = run("audit", "--why", name, "--store", str(store))
        unknown = run("audit", "--why", "nobody", "--store", str(store))
    assert result.exit_code == 0, result.output
    assert result.output == run("audit", "--why", name, trace).output
    assert unknown.exit_code == 2
    assert "no request has the id 'nobody'" in unknown.output
