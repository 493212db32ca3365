"""Known findings: what they do to answers of the api, statements and counters; and when findings are new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history import heartbeats, history
from known_file import KnownFile
from msgspec.structs import replace as changed
from sidecar import Sidecar

S = 10**9
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
FAILED = f"{STALE}\nA 256 !AssertionError: Mismatch"
WELL = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nend"
WHY = {"why": "fixed in 0.33", "until": None}


class Told(Sidecar):
    """A sidecar with a file of known findings."""

    def __init__(self, folder: Path) -> None:
        self.known = KnownFile(folder)
        super().__init__(folder, known_findings=self.known)

    def live(self, text: str, name: str, *, after_s: float = 0, **about: Any) -> None:
        """An engine that did this, beginning `after_s` later than a minute ago."""
        events = history(text, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=name)
        shift_ns = time.time_ns() + int((after_s - 60) * S) - events[0].start_ns
        events = [changed(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns) for e in events]
        events = [*events, *heartbeats(events, later_s=1)]
        named = {name.replace("__", "."): value for name, value in about.items()}
        self.hear(events, named)

    def statements(self) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["level"], each["text"]) for each in self.get("/api/status")["statements"]]

    def counted(self, known: str) -> float:
        return sum(
            sample.value
            for family in self.pipeline.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "kvtrail_findings_total" and sample.labels["known"] == known
        )


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.pipeline.close()


def test_a_known_finding_says_why_and_until_when_and_is_what_it_was(sidecar: Told) -> None:
    sidecar.live(STALE, "a")
    (finding,) = sidecar.get("/api/findings")
    assert finding["known"] is None
    sidecar.known.say(rule="stale-lookup", until="2999-01-01")
    known = {"why": "fixed in 0.33", "until": "2999-01-01"}
    assert sidecar.get("/api/findings") == [{**finding, "known": known}]
    assert [each["known"] for each in sidecar.get("/api/requests/a-0123abcd")["findings"]] == [known]
    sidecar.known.say(rule="stale-lookup", until="2020-01-01")
    assert sidecar.get("/api/findings") == [finding]
    sidecar.known.forget()
    assert sidecar.get("/api/findings") == [finding]


def test_health_says_whether_the_file_is_used_as_it_is(sidecar: Told) -> None:
    assert sidecar.get("/api/health")["known_findings"] == "ok"
    sidecar.known.say(rule="stale-lokup")
    assert "there is no rule 'stale-lokup'" in sidecar.get("/api/health")["known_findings"]


def test_the_first_page_says_how_many_are_known_and_is_calm(sidecar: Told) -> None:
    sidecar.live(FAILED, "a")
    sidecar.live(WELL, "b")
    assert [each[:2] for each in sidecar.statements()] == [("findings", "lost")]
    sidecar.known.say(rule="stale-lookup")
    well, known = sidecar.statements()
    assert well[:2] == ("well", "calm")
    assert well[2].endswith("; no finding but 1 known, no loss, no fall in hits")
    assert known == ("known", "calm", "1 known finding of stale-lookup: 1 did harm")
    (rule,) = sidecar.get("/api/status")["rules"]
    assert (rule["findings"], rule["harmed"]) == (1, 1), "nothing is hidden"
    assert rule["not_known"] == {"findings": 0, "looked_at": 0, "requests": 0, "healed": 0, "harmed": 0}


def test_what_is_known_of_one_engine_leaves_the_others_loud(sidecar: Told) -> None:
    sidecar.live(FAILED, "a")
    sidecar.live(STALE, "b")
    sidecar.known.say(rule="stale-lookup", engine="a")
    loud, known = sidecar.statements()
    assert loud == ("findings", "warning", "1 finding of stale-lookup in 1 request: no harm seen; 1 more is known")
    assert known[2] == "1 known finding of stale-lookup: 1 did harm"
    for route, number in (("/api/findings", len), ("/api/findings/rules", lambda rules: rules[0]["findings"])):
        assert number(sidecar.get(route)) == 2
        assert number(sidecar.get(route, known=True)) == number(sidecar.get(route, known=False)) == 1
    assert sidecar.get("/api/findings", known=False)[0]["engine"] == "b"
    (count,) = sidecar.get("/api/findings/trend", known=True)["counts"]
    assert count["findings"] == 1


def test_what_is_known_of_a_version_ends_with_the_version(sidecar: Told) -> None:
    sidecar.live(STALE, "old", kvtrail__vllm__version="0.31.0")
    sidecar.live(STALE, "new", kvtrail__vllm__version="0.32.0")
    sidecar.known.say(rule="stale-lookup", version="0.31.0")
    assert {each["engine"]: each["known"] for each in sidecar.get("/api/findings")} == {"old": WHY, "new": None}


def test_counters_never_fall_whenever_something_becomes_known(sidecar: Told) -> None:
    sidecar.live(STALE, "a")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0)
    sidecar.known.say(rule="stale-lookup")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0), "it was counted before"
    sidecar.live(STALE, "b")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 1)
    sidecar.known.forget()
    sidecar.live(STALE, "c")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (2, 1)


def test_the_first_batch_of_an_engine_is_counted_by_what_it_says_of_itself(sidecar: Told) -> None:
    sidecar.known.say(rule="stale-lookup", version="0.31.0")
    sidecar.live(STALE, "a", kvtrail__vllm__version="0.31.0")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (0, 1)


def test_what_was_known_until_yesterday_has_no_effect(sidecar: Told) -> None:
    sidecar.known.say(rule="stale-lookup", until="2020-01-01")
    sidecar.live(STALE, "a")
    assert (sidecar.counted("false"), sidecar.counted("true")) == (1, 0)


def test_a_rule_was_first_seen_over_all_time_and_all_engines(sidecar: Told) -> None:
    sidecar.live(STALE, "other", after_s=-24 * 3600)
    sidecar.live(STALE, "two")
    (rule,) = sidecar.get("/api/status")["rules"]
    (finding,) = sidecar.get("/api/findings", engine="two")
    assert rule["first_ns"] < finding["first_ns"] == rule["last_ns"]
    (of_two,) = sidecar.get("/api/findings/rules", engine="two")
    assert of_two["first_ns"] == of_two["last_ns"] == finding["first_ns"]


def test_the_oldest_findings_come_first_where_they_are_asked_for(sidecar: Told) -> None:
    for number, name in enumerate("abc"):
        sidecar.live(STALE, name, after_s=number)
    assert [each["engine"] for each in sidecar.get("/api/findings", order="oldest", limit=2)] == ["a", "b"]
    assert [each["engine"] for each in sidecar.get("/api/findings", limit=2)] == ["c", "b"]
