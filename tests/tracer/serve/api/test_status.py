"""Whether something is wrong, in sentences; and the requests that are worst, or alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history import goodbyes, heartbeats, history
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from sidecar import Sidecar
from wire import encoded

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.serve.api import rule_summaries, status
from kvtrail.tracer.serve.api.status import MAX_OF_A_KIND, Level, Range, Statement

S = 10**9
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
HEALED = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 0 cached healed 256\nA 0\nS 336+48\nend"
DIED = f"{STALE}\nA 256 !AssertionError: Mismatch"
WELL = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nend"


class Tracer(Sidecar):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.began_ns = time.time_ns() - 60 * S

    def live(
        self,
        text: str,
        name: str = "a",
        *,
        ended_by: str | None = None,
        dies: bool = False,
        after_s: int = 0,
        **about: str,
    ) -> list[Event]:
        """An engine that does this, a minute ago."""
        events = history(text, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=name)
        shift_ns = self.began_ns + after_s * S - events[0].start_ns
        events = [replace(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns) for e in events]
        last = goodbyes(events) if dies else heartbeats(events, later_s=1)
        events += [replace(each, recorder_ended_by=ended_by, scheduler_step=1) for each in last]  # type: ignore[call-arg]
        named = {name.replace("_", "."): value for name, value in about.items()}
        self.hear(events, named)
        return events

    def statements(self, **params: Any) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["level"], each["text"]) for each in self.get("/api/status", **params)["statements"]]


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[Tracer]:
    made = Tracer(tmp_path)
    yield made
    made.pipeline.close()


def test_an_empty_store_is_not_called_well(tracer: Tracer) -> None:
    assert tracer.statements() == [("nothing", "calm", "Nothing was recorded in this time")]


def test_where_nothing_is_wrong_one_sentence_says_so(tracer: Tracer) -> None:
    tracer.live(WELL)
    tracer.live(WELL, "b")
    ((kind, level, text),) = tracer.statements()
    assert (kind, level) == ("well", "calm")
    assert text.startswith("All well: 2 engines, ")
    assert text.endswith(" requests a minute, 34 % of prefill saved; no finding, no loss, no fall in hits")
    assert tracer.get("/api/status")["rules"] == []


def test_a_death_is_reported_with_its_place_its_loss_and_its_cause(tracer: Tracer) -> None:
    events = tracer.live(DIED, "llama-a", dies=True, ended_by="AssertionError: Mismatch", k8s_pod_name="vllm-0")
    tracer.live(WELL, "b")
    first, *others = tracer.get("/api/status")["statements"]
    at = status.Range(since_ns=0, until_ns=time.time_ns()).at(events[-1].end_ns)
    reported = f"Engine llama-a (pod vllm-0) died at {at} of AssertionError with 1 open request: a stale lookup"
    assert (first["kind"], first["level"], first["text"]) == ("death", "lost", reported)
    assert (first["at_ns"], first["engine"]) == (events[-1].end_ns, "llama-a")
    assert (first["page"], first["query"]) == ("request", {"id": "llama-a-0123abcd", "engine": "llama-a"})
    ((kind, level, text),) = [(each["kind"], each["level"], each["text"]) for each in others]
    assert (kind, level) == ("findings", "lost")
    assert text == "1 finding of stale-lookup in 1 request: 1 did harm"


def test_a_process_that_ended_without_a_goodbye_is_not_said_to_have_died_of_something(tracer: Tracer) -> None:
    events = tracer.live("L 749 c0 h0 -> 0\nA 0", dies=True, ended_by=NO_END_RECORD)
    at = status.Range(since_ns=0, until_ns=time.time_ns()).at(events[-1].end_ns)
    assert tracer.statements() == [("death", "lost", f"Engine a was killed at {at} with 1 open request")]


def test_an_engine_that_was_stopped_in_the_middle_of_requests_has_lost_them(tracer: Tracer) -> None:
    events = tracer.live("L 749 c0 h0 -> 0\nA 0", dies=True)
    at = status.Range(since_ns=0, until_ns=time.time_ns()).at(events[-1].end_ns)
    assert tracer.statements() == [("stop", "warning", f"Engine a was stopped at {at} with 1 open request")]


def test_what_was_found_did_no_harm_where_the_engine_was_stopped(tracer: Tracer) -> None:
    """`store-gap: 1 did harm`, since an operator had stopped the engine."""
    tracer.live(f"{STALE}\nA 0\nS 336+48", dies=True)
    assert [kind for kind, *_ in tracer.statements()] == ["stop", "findings"]
    (rule,) = tracer.get("/api/status")["rules"]
    assert (rule["harmed"], rule["findings"]) == (0, 1)
    assert {each["did"] for each in tracer.get("/api/findings")} == {"no harm seen"}


def test_numbers_agree_on_every_route(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than a page lists: what counts them counts all."""
    tracer.live(f"{DIED}\nb: {WELL.splitlines()[0]}", dies=True, ended_by="AssertionError: Mismatch")
    tracer.live(HEALED, "c")
    for number, end in enumerate(("end", "end", "end", "end aborted", "end error")):
        tracer.live(WELL.replace("end", end), f"e{number}")
    tracer.live("L 749 c0 h0 -> 0\nA 0", "open")
    answer = tracer.get("/api/status")
    since_ns, until_ns = answer["since_ns"], answer["until_ns"]
    range_ = {"since_ns": since_ns, "until_ns": until_ns}
    assert answer["outcomes"] == {"finished": 4, "aborted": 1, "failed": 2, "lost": 1, "lost_contact": 0, "running": 1}
    for outcome, number in answer["outcomes"].items():
        listed = tracer.get("/api/requests", outcome=outcome, since_ns=since_ns, before_ns=until_ns)
        assert len(listed) == number, outcome
    (death,) = [each for each in answer["statements"] if each["kind"] == "death"]
    lanes = tracer.get("/api/lanes", from_ns=since_ns, to_ns=until_ns)
    (fleet,) = [each for each in tracer.get("/api/fleet")["engines"] if each["state"] == "died"]
    assert [(each["engine"], each["lost"]) for each in lanes["deaths"]] == [(death["engine"], fleet["lost"])]
    assert tracer.get("/api/findings/rules", **range_) == answer["rules"]
    assert tracer.get("/api/findings/rules", engine="c", **range_)[0]["requests"] == 1
    findings = tracer.get("/api/findings", **range_)
    (rule,) = answer["rules"]
    assert rule["findings"] == len(findings) == tracer.get("/api/totals")["findings"]
    assert rule["requests"] == len({(each["engine"], each["request"]) for each in findings})
    assert (rule["healed"], rule["harmed"]) == (1, 1)


def test_the_metrics_count_as_the_pages_do(tracer: Tracer) -> None:
    """Requests, findings and deaths, in /metrics, in the api and so on every page."""
    tracer.live(DIED, dies=True, ended_by="AssertionError: Mismatch")
    tracer.live(HEALED, "c")
    for number, end in enumerate(("end", "end aborted", "end error")):
        tracer.live(WELL.replace("end", end), f"e{number}")
    families = [*text_string_to_metric_families(tracer.client.get("/metrics").text)]

    def total(name: str, **labels: str) -> float:
        samples = [each for family in families for each in family.samples if each.name == name]
        assert samples, name
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    answer, totals = tracer.get("/api/status"), tracer.get("/api/totals")
    assert (
        total("kvtrail_findings_total") == totals["findings"] == sum(each["findings"] for each in answer["rules"]) == 2
    )
    for rule in answer["rules"]:
        assert total("kvtrail_findings_total", rule=rule["rule"]) == rule["findings"]
    engines = tracer.get("/api/fleet")["engines"]
    died = [each for each in engines if each["state"] == "died"]
    deaths = [each for each in answer["statements"] if each["kind"] == "death"]
    assert len(died) == len(deaths) == 1
    assert total("kvtrail_engine_deaths_total") == len(died)
    assert total("kvtrail_engine_lost_requests_total") == sum(each["lost"] for each in died)
    for outcome, reason in (("finished", "stopped"), ("aborted", "aborted")):
        assert total("kvtrail_requests_total", outcome=reason) == answer["outcomes"][outcome] > 0, outcome
    # A call about the request of the engine that died raised: it has failed, and vLLM has not ended it.
    assert answer["outcomes"]["failed"] == total("kvtrail_requests_total", outcome="error") + len(died)


def test_what_very_old_findings_did_is_not_made_up(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`healed by the guard (of the latest 0)`."""
    monkeypatch.setattr(rule_summaries, "LOOKED_AT", 0)
    tracer.live(DIED, dies=True, ended_by="AssertionError: Mismatch")
    texts = [text for kind, _, text in tracer.statements() if kind == "findings"]
    assert texts == ["1 finding of stale-lookup: they are too old to say what they did"]


def test_only_what_is_in_the_range_is_returned(tracer: Tracer) -> None:
    events = tracer.live(DIED, dies=True, ended_by="AssertionError: Mismatch")
    tracer.live(WELL, "b")
    ended_ns = events[-1].end_ns
    kinds = [kind for kind, _, _ in tracer.statements(since_ns=ended_ns, until_ns=ended_ns + 60 * S)]
    assert "death" in kinds
    assert "death" not in [kind for kind, _, _ in tracer.statements(since_ns=ended_ns + 1)]
    assert tracer.client.get("/api/status", params={"since_ns": 5, "until_ns": 5}).status_code == 422


def test_what_findings_did_is_counted_by_rule(tracer: Tracer) -> None:
    tracer.live(HEALED)
    tracer.live(f"{STALE}\nA 0\nS 336+48\nend", "b")
    answer = tracer.get("/api/status")
    (rule,) = answer["rules"]
    assert [rule[name] for name in ("rule", "severity", "findings", "requests", "healed", "harmed")] == [
        "stale-lookup", "crash", 2, 2, 1, 0,
    ]  # fmt: skip
    assert tracer.statements() == [("findings", "warning", "2 findings of stale-lookup in 2 requests: no harm seen")]
    did = {finding["engine"]: finding["did"] for finding in tracer.get("/api/findings")}
    assert did == {"a": "healed", "b": "no harm seen"}
    assert tracer.get("/api/requests/a-0123abcd")["findings"][0]["did"] == "healed"


def test_findings_beyond_those_that_are_looked_at_are_counted_all_the_same(
    tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_summaries, "LOOKED_AT", 1)
    tracer.live(HEALED)
    tracer.live(HEALED, "b")
    (rule,) = tracer.get("/api/status")["rules"]
    assert [rule[name] for name in ("findings", "looked_at", "requests", "healed")] == [2, 1, 1, 1]
    ((_, _, text),) = tracer.statements()
    assert text == "2 findings of stale-lookup: healed by the guard (of the latest 1)"


def test_all_is_not_well_where_no_engine_runs(tracer: Tracer) -> None:
    tracer.live(WELL, dies=True)
    ((_, level, text),) = tracer.statements()
    assert level == "calm"
    assert text.startswith("Nothing went wrong, and no engine runs now: ")
    assert text.endswith(" requests a minute, 34 % of prefill saved; no finding, no loss, no fall in hits")


def test_a_request_that_failed_or_was_lost(tracer: Tracer) -> None:
    tracer.live(f"{DIED}\nb: {WELL.splitlines()[0]}", dies=True, ended_by="AssertionError: Mismatch")
    tracer.live(f"{DIED}\nb: S 10+10", "alive")
    outcomes = {row["request"]: (row["engine"], row["outcome"]) for row in tracer.get("/api/requests")}
    assert outcomes["a-0123abcd"] == ("a", "failed")
    assert outcomes["b-a-0123abcd"] == ("a", "lost")
    assert outcomes["alive-0123abcd"] == ("alive", "failed")
    assert outcomes["b-alive-0123abcd"] == ("alive", "running")
    assert {f["engine"]: f["did"] for f in tracer.get("/api/findings")} == {
        "a": "engine died",
        "alive": "request failed",
    }

    def having(**wanted: str | int) -> list[str]:
        return [row["request"] for row in tracer.get("/api/requests", **wanted)]

    assert having(outcome="failed") == having(outcome="failed", status="failed")
    assert {*having(outcome="failed")} == {"a-0123abcd", "alive-0123abcd"}
    assert having(outcome="lost") == having(outcome="lost", engine="a") == ["b-a-0123abcd"]
    assert having(outcome="running") == having(outcome="running", sort="loads") == ["b-alive-0123abcd"]
    assert having(outcome="lost", engine="alive") == having(outcome="lost", status="finished") == []
    assert having(outcome="finished") == having(outcome="lost_contact") == []


def test_requests_of_one_outcome_are_looked_for_behind_others_and_sorted(tracer: Tracer) -> None:
    aborted = ("L 749 c0 h256 -> 256\nA 256\nS 256+80\nend aborted", "L 749 c0 h0 -> 0\nA 0\nS 0+80\nend aborted")
    for number, text in enumerate((*aborted, WELL, WELL, WELL, WELL, WELL)):
        tracer.live(text, f"e{number}", after_s=number)

    def aborts(**wanted: str | int) -> list[str]:
        return [row["engine"] for row in tracer.get("/api/requests", outcome="aborted", **wanted)]

    assert aborts(limit=1) == ["e1"]
    assert aborts() == ["e1", "e0"]
    assert aborts(sort="loads") == ["e0", "e1"]


def test_missing_spans_are_reported(tracer: Tracer) -> None:
    events = history("L 10 c0 h0 -> 0\nA 0\nS 0+10\nend", recorder="lossy", engine="lossy")
    shift_ns = tracer.began_ns - events[0].start_ns
    events = [replace(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns) for e in events]
    tracer.pipeline.ingest(encoded([*events[:1], *events[3:]]), transport="grpc")
    ((kind, level, text),) = tracer.statements()
    assert (kind, level) == ("lost-spans", "warning")
    assert text == "2 spans of engine lossy did not arrive: what they touch is unknown"


def test_of_many_alike_the_rest_is_counted() -> None:
    missing = {f"engine-{number}": 10 + number for number in range(MAX_OF_A_KIND + 3)}
    reported = status.of_lost_spans(missing, str)
    assert len(reported) == MAX_OF_A_KIND + 1
    assert (reported[-1].text, reported[-1].engine) == ("3 more engines lost spans", None)


def test_the_worst_comes_first() -> None:
    levels = [Level.WARNING, Level.CALM, Level.LOST, Level.WARNING]
    reported = [Statement(kind=str(n), level=level, text="", page="") for n, level in enumerate(levels)]
    assert [each.kind for each in status.worst_first(reported)] == ["2", "0", "3", "1"]


def test_a_moment_of_another_day_has_its_date() -> None:
    day = Range(since_ns=0, until_ns=25 * 3600 * S)
    assert (day.at(24 * 3600 * S + 5 * S), day.at(0)) == ("00:00:05", "1970-01-01 00:00:00")


# The worst requests, and those that are alike.


def test_requests_are_sorted_by_what_is_asked_for(tracer: Tracer) -> None:
    tracer.live(WELL, "plain")
    tracer.live("L 749 c0 h256 -> 256 async\nA 256\nwait 2\nR\nS 256+80\nend", "waits", after_s=1)
    tracer.live("L 749 c0 h0 -> 0\nA 0\nS 0+300\nP\nL 749 c0 h0 -> 0\nA 0\nS 0+300\nend", "again", after_s=2)
    tracer.live(f"{STALE}\nA 0\nS 336+48\nend", "drifts", after_s=3)
    first = {
        sort: tracer.get("/api/requests", sort=sort)[0]["engine"]
        for sort in ("latest", "waiting", "recomputed", "findings")
    }
    assert first == {"latest": "drifts", "waiting": "waits", "recomputed": "again", "findings": "drifts"}
    by_id = {row["engine"]: row for row in tracer.get("/api/requests")}
    assert (by_id["waits"]["wait_loads"], by_id["waits"]["loads"]) == (1, 1)
    assert 2 * S <= by_id["waits"]["waited_ns"] < 3 * S
    assert tracer.get("/api/requests", sort="duration")[0]["engine"] == "waits"
    assert [by_id[name]["recomputed"] for name in ("plain", "again")] == [0, 300]
    assert tracer.get("/api/requests", sort="recomputed", verdict="ok")[0]["engine"] == "again"
    assert tracer.get("/api/requests", sort="loads", search="plain")[0]["engine"] == "plain"
    assert tracer.client.get("/api/requests", params={"sort": "beauty"}).status_code == 422


def test_requests_of_an_engine_and_of_a_time(tracer: Tracer) -> None:
    tracer.live(WELL, "a", service_name="chat")
    events = tracer.live(WELL, "b", after_s=10)
    assert [row["engine"] for row in tracer.get("/api/requests", engine="a")] == ["a"]
    assert tracer.get("/api/requests", engine="a", service="another") == []
    assert [row["service"] for row in tracer.get("/api/requests", engine="a")] == ["chat"]
    since_ns = events[0].start_ns
    for params in ({}, {"search": "0123abcd"}, {"verdict": "ok"}, {"sort": "loads"}):
        assert [row["engine"] for row in tracer.get("/api/requests", since_ns=since_ns, **params)] == ["b"]
        assert [row["engine"] for row in tracer.get("/api/requests", before_ns=since_ns, **params)] == ["a"]


def test_requests_like_another_come_the_most_alike_first(tracer: Tracer) -> None:
    tracer.live(f"{WELL}\nb: L 760 c0 h0 -> 0\nc: L 3000 c0 h0 -> 0", "a")
    tracer.live(WELL, "same")
    tracer.live(WELL.replace("749", "740"), "d", after_s=500)
    tracer.live(WELL, "e", kvtrail_model="another")
    near = tracer.get("/api/requests", near="a-0123abcd", near_engine="a")
    assert [row["request"] for row in near] == ["b-a-0123abcd", "same-0123abcd", "c-a-0123abcd", "d-0123abcd"]
    assert tracer.client.get("/api/requests", params={"near": "nobody"}).status_code == 404


def test_wrong_kv_that_was_read_did_harm(tracer: Tracer) -> None:
    """Its request goes on and its output is not seen; but what it read is known."""
    story = "L 64 c0 h64 -> 63\nA 63\ncheck loaded 2 wrong drift 12@0{healed}\nS 63+1\nend"
    tracer.live(story.format(healed=" healed"))
    assert {finding["did"] for finding in tracer.get("/api/findings")} == {"healed"}
    tracer.live(story.format(healed=""), "b")
    assert {finding["engine"]: finding["did"] for finding in tracer.get("/api/findings", rule="byte-drift")} == {
        "a": "healed", "b": "wrong KV read",
    }  # fmt: skip
    (rule,) = tracer.get("/api/status")["rules"]
    assert (rule["rule"], rule["findings"], rule["healed"], rule["harmed"]) == ("byte-drift", 2, 1, 1)
    assert tracer.statements() == [("findings", "lost", "2 findings of byte-drift in 2 requests: 1 did harm")]
