"""Silences over the api: made, listed, ended; and what they do to statements, lists and counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from history import heartbeats, history
from msgspec.structs import replace as changed
from wire import encoded

from kvtrail.tracer.serve.access import Access
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.api.silences import MAX_BODY
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.roles import TokenFile
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
FAILED = f"{STALE}\nA 256 !AssertionError: Mismatch"
WELL = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nend"
KNOWN = {"rule": "stale-lookup", "ends_ns": None, "why": "fixed in the next vLLM", "by": "ana"}


class Sidecar:
    def __init__(self, folder: Path, access: Access | None = None) -> None:
        self.path = folder / "s.db"
        self.pipeline = Pipeline(SqliteWriter(self.path), Metrics(), grace_ns=0)
        reader = SqliteReader(self.path)
        self.client = TestClient(application(self.pipeline, reader, self.pipeline.metrics, tokens=access))

    def hear(self, text: str, name: str, *, after_s: float = 0, **about: Any) -> None:
        """An engine that did this, beginning `after_s` later than a minute ago."""
        events = history(text, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=name)
        shift_ns = time.time_ns() + int((after_s - 60) * S) - events[0].start_ns
        events = [changed(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns) for e in events]
        events = [*events, *heartbeats(events, later_s=1)]
        named = {name.replace("__", "."): value for name, value in about.items()}
        self.pipeline.ingest(encoded(events, named), transport="grpc")
        self.pipeline.tidy()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def silence(self, **asked: Any) -> dict[str, Any]:
        answer = self.client.post("/api/silences", json={**KNOWN, **asked})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def statements(self) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["level"], each["text"]) for each in self.get("/api/status")["statements"]]

    def counted(self, silenced: str) -> float:
        return sum(
            sample.value
            for family in self.pipeline.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "kvtrail_findings_total" and sample.labels["silenced"] == silenced
        )


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path)
    yield made
    made.pipeline.close()


def test_a_silence_is_made_listed_ended_and_stays_listed(sidecar: Sidecar) -> None:
    sidecar.hear(STALE, "a")
    (finding,) = sidecar.get("/api/findings")
    made = sidecar.silence()
    assert made["is_active"]
    assert made["last_seen_ns"] == finding["last_ns"]
    assert sidecar.get("/api/silences") == [made]
    (silenced,) = sidecar.get("/api/findings")
    assert silenced["silence"]["id"] == made["id"]
    assert {**silenced, "silence": None} == finding, "it is what it was"
    ended = sidecar.client.delete(f"/api/silences/{made['id']}").json()
    assert not ended["is_active"]
    assert sidecar.get("/api/silences") == [ended]
    assert sidecar.get("/api/findings") == [finding]
    assert sidecar.client.delete(f"/api/silences/{made['id']}").json() == ended, "a second end changes nothing"
    missing = sidecar.client.delete("/api/silences/none")
    assert missing.status_code == 404
    assert missing.json()["detail"] == "there is no silence 'none'; GET /api/silences lists them"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({**KNOWN, "rule": "stale-lokup"}, 422, "there is no rule 'stale-lokup'; did you mean 'stale-lookup'?"),
        ({**KNOWN, "rule": ""}, 422, "a silence without a matcher would silence everything"),
        ({**KNOWN, "ends_ns": 1}, 422, "'ends_ns' is in the past"),
        ({"rule": "full-hit", "why": "x", "by": "x"}, 422, "say when it ends"),
        ([KNOWN], 400, "send a JSON object"),
        ({**KNOWN, "why": "x" * MAX_BODY}, 413, "a silence has at most"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(sidecar: Sidecar, body: Any, code: int, says: str) -> None:
    answer = sidecar.client.post("/api/silences", json=body)
    assert answer.status_code == code, answer.text
    assert answer.json()["detail"].startswith(says)
    assert sidecar.get("/api/silences") == []


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_a_page_of_another_site_cannot_silence_with_a_readers_browser(sidecar: Sidecar, content_type: str) -> None:
    """What a browser sends without asking the server first has none but these types."""
    headers = {"content-type": content_type} if content_type else {}
    answer = sidecar.client.post("/api/silences", content=b'{"rule": "full-hit"}', headers=headers)
    assert answer.status_code == 415
    broken = sidecar.client.post("/api/silences", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["detail"][:15]) == (400, "this is no JSON")


def test_only_a_token_that_may_change_silences(tmp_path: Path) -> None:
    for role in ("read", "write", "change"):
        (tmp_path / role).write_text(f"{role}-token\n")
    sidecar = Sidecar(
        tmp_path, Access(TokenFile.of(f"{role}={tmp_path / role}") for role in ("read", "write", "change"))
    )
    for token, method, code in (
        ("read", "GET", 200), ("read", "POST", 403), ("write", "POST", 403), ("none", "POST", 401), ("change", "POST", 201),
    ):  # fmt: skip
        headers = {"authorization": f"Bearer {token}-token"}
        answer = sidecar.client.request(method, "/api/silences", json=KNOWN, headers=headers)
        assert answer.status_code == code, token
    (made,) = SqliteReader(sidecar.path).silences()
    refused = sidecar.client.delete(f"/api/silences/{made.id}", headers={"authorization": "Bearer read-token"})
    assert refused.status_code == 403
    sidecar.pipeline.close()


def test_the_first_page_says_how_many_are_silenced_and_is_calm(sidecar: Sidecar) -> None:
    sidecar.hear(FAILED, "a")
    sidecar.hear(WELL, "b")
    assert [each[:2] for each in sidecar.statements()] == [("findings", "lost")]
    sidecar.silence()
    well, silenced = sidecar.statements()
    assert well[:2] == ("well", "calm")
    assert well[2].endswith("; no finding but 1 silenced, no loss, no fall in hits")
    assert silenced == ("silenced", "calm", "1 known finding of stale-lookup is silenced: 1 did harm")
    (rule,) = sidecar.get("/api/status")["rules"]
    assert (rule["findings"], rule["harmed"]) == (1, 1), "nothing is hidden"
    assert rule["unsilenced"] == {"findings": 0, "looked_at": 0, "requests": 0, "healed": 0, "harmed": 0}


def test_a_silence_of_one_engine_leaves_the_others_loud(sidecar: Sidecar) -> None:
    sidecar.hear(FAILED, "a")
    sidecar.hear(STALE, "b")
    sidecar.silence(rule="", engine="a")
    loud, silenced = sidecar.statements()
    assert loud == ("findings", "warning", "1 finding of stale-lookup in 1 request: no harm seen; 1 more is silenced")
    assert silenced[2] == "1 known finding of stale-lookup is silenced: 1 did harm"
    for route, number in (("/api/findings", len), ("/api/findings/rules", lambda rules: rules[0]["findings"])):
        assert number(sidecar.get(route)) == 2
        assert number(sidecar.get(route, silenced=True)) == number(sidecar.get(route, silenced=False)) == 1
    assert sidecar.get("/api/findings", silenced=False)[0]["engine"] == "b"
    (count,) = sidecar.get("/api/findings/trend", silenced=True)["counts"]
    assert count["findings"] == 1


def test_a_silence_by_version_ends_with_the_version(sidecar: Sidecar) -> None:
    sidecar.hear(STALE, "old", kvtrail__vllm__version="0.31.0")
    sidecar.hear(STALE, "new", kvtrail__vllm__version="0.32.0")
    sidecar.silence(vllm_version="0.31.0")
    named = {each["engine"]: each["silence"] is not None for each in sidecar.get("/api/findings")}
    assert named == {"old": True, "new": False}


def test_counters_never_fall_whenever_a_silence_begins_or_ends(sidecar: Sidecar) -> None:
    sidecar.hear(STALE, "a")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0)
    made = sidecar.silence()
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0), "it was counted before"
    sidecar.hear(STALE, "b")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 1)
    sidecar.client.delete(f"/api/silences/{made['id']}")
    sidecar.hear(STALE, "c")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (2, 1)


def test_the_first_batch_of_an_engine_is_counted_by_what_it_says_of_itself(sidecar: Sidecar) -> None:
    sidecar.silence(rule="", vllm_version="0.31.0")
    sidecar.hear(STALE, "a", kvtrail__vllm__version="0.31.0")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (0, 1)


def test_a_silence_that_has_expired_has_no_effect(sidecar: Sidecar) -> None:
    made = sidecar.silence(ends_ns=time.time_ns() + 3600 * S)
    (known,) = sidecar.pipeline.silences
    over = replace(known, ends_ns=time.time_ns() - 1, written_ns=known.written_ns + 1)
    sidecar.pipeline.put_silences([over])
    sidecar.hear(STALE, "a")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0)
    assert sidecar.get("/api/findings")[0]["silence"] is None
    assert [(each["id"], each["is_active"]) for each in sidecar.get("/api/silences")] == [(made["id"], False)]


def test_silences_outlive_the_sidecar(tmp_path: Path) -> None:
    before = Sidecar(tmp_path)
    made = before.silence()
    before.pipeline.close()
    after = Sidecar(tmp_path)
    assert after.get("/api/silences") == [made]
    after.hear(STALE, "a")
    assert after.counted("true") == 1
    after.pipeline.close()


def test_a_rule_is_new_if_its_engines_had_it_only_since_their_last_deploy(sidecar: Sidecar) -> None:
    day_s = 24 * 3600
    chat: dict[str, Any] = {"service__name": "chat", "kvtrail__model": "m"}
    sidecar.hear(WELL, "one", after_s=-day_s, **chat)
    sidecar.hear(STALE, "other", after_s=-day_s, service__name="batch")
    sidecar.hear(STALE, "two", **chat)
    (rule,) = sidecar.get("/api/status")["rules"]
    (finding,) = sidecar.get("/api/findings", engine="two")
    assert rule["new_since_ns"] is not None
    assert rule["new_since_ns"] <= finding["first_ns"]
    assert rule["first_ns"] < finding["first_ns"] == rule["last_ns"], "over all time, and all engines"
    (of_two,) = sidecar.get("/api/findings/rules", engine="two")
    assert of_two["first_ns"] == of_two["last_ns"] == finding["first_ns"]
    (of_batch,) = sidecar.get("/api/findings/rules", engine="other", since_ns=0)
    assert of_batch["new_since_ns"] is None, "it was deployed once: what was before is unknown"


def test_a_rule_that_came_back_after_a_deploy_is_not_new(sidecar: Sidecar) -> None:
    chat: dict[str, Any] = {"service__name": "chat"}
    sidecar.hear(STALE, "one", after_s=-24 * 3600, **chat)
    sidecar.hear(STALE, "two", **chat)
    (rule,) = sidecar.get("/api/status")["rules"]
    assert rule["new_since_ns"] is None


def test_the_oldest_findings_come_first_where_they_are_asked_for(sidecar: Sidecar) -> None:
    for number, name in enumerate("abc"):
        sidecar.hear(STALE, name, after_s=number)
    assert [each["engine"] for each in sidecar.get("/api/findings", order="oldest", limit=2)] == ["a", "b"]
    assert [each["engine"] for each in sidecar.get("/api/findings", limit=2)] == ["c", "b"]
