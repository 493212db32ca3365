"""What the api says of windows of time, from a real tracer process; and what a store keeps of the sums."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from history import START_NS, hash_of, history
from processes import SLOW_S, Tracer
from saved import stored
from wire import as_request, encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.savings.minute_sums import StepKey
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import Batch, FindingFilter, StoreError
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

HIT = "L 749 c96 h512 -> 416\nA 416\nS 512+237\nP\nL 750 c0 h512 -> 512\nA 512\nS 512+238\nend"
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"
WINDOW = {"since_ns": START_NS - 10**9, "until_ns": START_NS + 60 * 10**9}
EVER: dict[str, Any] = {"since_ns": 0, "until_ns": 2**62}


def feed(tracer: Tracer, text: str, **where: Any) -> None:
    body = as_request(history(text, **where)).SerializeToString()
    headers = {"content-type": "application/x-protobuf"}
    assert httpx.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).status_code == 200


def sums(reader: SqliteReader) -> dict[str, int]:
    summed: dict[str, int] = {}
    for row in reader.savings(**EVER):
        for measure, value in row.measures.items():
            summed[measure] = summed.get(measure, 0) + value
    return summed


def test_efficiency_by_epoch_place_and_time(api: Tracer) -> None:
    feed(api, HIT, request="eff-0123abcd", recorder="eff", engine="eff-engine", connector="C")
    result = api.get("/api/efficiency", engine="eff-engine", **WINDOW)
    assert result["worth"]["taken"] == 928
    assert result["worth"]["hit_share"] == pytest.approx(928 / 1499)
    assert result["worth"]["taken"] == 416 + 512, "in both of its epochs"
    assert [(p["engine"], p["connector"], p["worth"]["asked"]) for p in result["by_place"]] == [
        ("eff-engine", "C", 1499)
    ]
    assert [stretch["worth"]["lookups"] for stretch in result["trend"]] == [2]
    assert "eff-engine" in result["choices"]["engines"]
    assert result["worth"]["prefill_saved_s"] is None
    elsewhere = api.get("/api/efficiency", engine="eff-engine", since_ns=1, until_ns=10**9)
    assert elsewhere["worth"]["asked"] == 0
    assert elsewhere["trend"] == []


def test_a_window_must_have_an_inside(api: Tracer) -> None:
    answer = httpx.get(f"{api.url}/api/efficiency", params={"since_ns": 5, "until_ns": 5}, timeout=SLOW_S)
    assert answer.status_code == 422
    assert "since_ns 5 is not before until_ns 5" in answer.text


def test_what_changed_at_a_moment(api: Tracer) -> None:
    """From one minute to the next an engine loads nothing any more, and all that is computed more is its own."""
    began_ns = START_NS // (60 * 10**9) * 60 * 10**9
    for number, text in enumerate((HIT, "start 749\nwait 60\nL 749 c96 h0 -> 0\nA 0\nS 96+653\nend")):
        name = f"change-{number}"
        feed(api, text, request=f"{name}-0123abcd", recorder=name, engine="change-engine", connector="C")
    asked: dict[str, str | int] = {
        "at_ns": began_ns + 60 * 10**9,
        "until_ns": began_ns + 120 * 10**9,
        "engine": "change-engine",
    }
    answer = api.get("/api/changes", **asked)
    before, after = answer["before"], answer["after"]
    assert (before["since_ns"], before["until_ns"]) == (began_ns, began_ns + 60 * 10**9)
    assert (after["since_ns"], after["until_ns"]) == (began_ns + 60 * 10**9, began_ns + 120 * 10**9)
    changed = {each["measure"]: each["whole"] for each in answer["changes"]}
    assert changed["loaded"] == {"before": 928, "after": 0}
    assert changed["computed"] == {"before": 1499 - 96 - 928, "after": 749 - 96}
    (computed,) = (each for each in answer["changes"] if each["measure"] == "computed")
    assert [(each["group"], each["share"]) for each in computed["groups"] if each["dimension"] == "engine"] == [
        ("change-engine", 1.0)
    ]


def test_what_changed_by_the_beginnings_of_prompts(api: Tracer) -> None:
    """Blocks of 32 tokens: the second one ends the first 64. One begins as no other: it is no group."""
    began_ns = START_NS // (60 * 10**9) * 60 * 10**9
    for number, blocks in enumerate(("p q r", "p q s", "p t r")):
        text = f"start 96 of {blocks}\nL 96 c0 h32 -> 32\nA 32 [1-3]\nS 32+64\nend"
        feed(api, text, request=f"begin-{number}-0123abcd", recorder=f"begin-{number}", engine="begin", connector="C")
    answer = api.get(
        "/api/changes", at_ns=began_ns, since_ns=began_ns - 60 * 10**9, until_ns=began_ns + 60 * 10**9, engine="begin"
    )
    (computed,) = (each for each in answer["changes"] if each["measure"] == "computed")
    (group,) = (each for each in computed["groups"] if each["dimension"] == "prefix")
    assert (group["group"], group["amount"]) == (hash_of("q").hex(), {"before": 0, "after": 128})
    assert "new prefix" in {each["kind"] for each in answer["likely"]}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"at_ns": 5, "until_ns": 5}, "at_ns 5 is not between"),
        ({"at_ns": 5, "since_ns": 5, "until_ns": 9}, "at_ns 5 is not between since_ns 5 and until_ns 9"),
        ({}, "Field required"),
    ],
)
def test_a_moment_outside_of_the_range_is_refused(api: Tracer, asked: dict[str, int], why: str) -> None:
    answer = httpx.get(f"{api.url}/api/changes", params=asked, timeout=SLOW_S)
    assert answer.status_code == 422
    assert why in answer.text


def test_findings_are_narrowed_down_by_everything_that_the_page_offers(api: Tracer) -> None:
    feed(api, STALE, request="narrow-0123abcd", recorder="narrow", engine="narrow-engine", connector="Narrow")
    (finding,) = found(api, engine="narrow-engine")
    assert finding["model"] == ""  # the recorder of the tests names none
    assert found(api, connector="Narrow", rule="stale-lookup", severity="crash", **WINDOW) == [finding]
    for other in ({"connector": "Wide"}, {"rule": "no-token-left"}, {"severity": "leak"}, {"model": "opt"}):
        assert found(api, engine="narrow-engine", **other) == []
    assert found(api, engine="narrow-engine", since_ns=WINDOW["until_ns"]) == []
    assert found(api, engine="narrow-engine", until_ns=WINDOW["since_ns"]) == []


def found(api: Tracer, **asked: str | int) -> list[Any]:
    answer = api.get("/api/findings", **asked)
    return list(answer)


def test_the_trend_counts_findings_where_they_were_last_seen(api: Tracer) -> None:
    feed(api, STALE, request="trend-0123abcd", recorder="trend", engine="trend-engine", connector="Trend")
    result = api.get("/api/findings/trend", engine="trend-engine", **WINDOW)
    (stretch,) = result["counts"]
    assert (stretch["rule"], stretch["severity"], stretch["findings"]) == ("stale-lookup", "crash", 1)
    assert stretch["at_ns"] <= START_NS + 10**9 < stretch["at_ns"] + result["step_ns"] + 10**9


def test_the_fleet_names_engines_with_their_recorders_and_open_requests(api: Tracer) -> None:
    feed(api, "L 100 c0 h0 -> 0", request="fleet-0123abcd", recorder="fleet", engine="fleet-engine", connector="F")
    result = api.get("/api/fleet")
    (engine,) = [e for e in result["engines"] if e["engine"] == "fleet-engine"]
    assert (engine["open"], engine["service"]) == (1, "test")
    (recorder,) = engine["recorders"]
    assert (recorder["id"], recorder["connectors"]) == ("fleet", ["F"])
    assert recorder["lag_ns"] > 10**9  # the history is an old one
    assert result["tracer"]["open"] >= 1


def test_a_requests_spans_are_a_trace_file(api: Tracer, tmp_path: Path) -> None:
    feed(api, STALE, request="team/otlp ü-0123abcd", recorder="otlp", engine="otlp-engine")
    answer = httpx.get(f"{api.url}/api/otlp", params={"request": "team/otlp ü-0123abcd"}, timeout=SLOW_S)
    assert answer.headers["content-disposition"] == 'attachment; filename="team_otlp__-0123abcd.jsonl"'
    (tmp_path / "t.jsonl").write_bytes(answer.content)
    assert [finding.rule for finding in audit([tmp_path / "t.jsonl"]).findings] == ["stale-lookup"]
    assert httpx.get(f"{api.url}/api/otlp", params={"request": "nobody"}, timeout=SLOW_S).status_code == 404


def test_a_batch_that_comes_twice_is_summed_up_once(tmp_path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    for _ in range(2):
        pipeline.ingest(encoded(history(HIT)), transport="http")
    assert sums(SqliteReader(tmp_path / "s.db"))["asked"] == 1499


def test_a_restart_in_the_middle_of_a_request_sums_up_once(tmp_path: Path) -> None:
    events = history(HIT)
    for cut in range(1, len(events)):
        path = tmp_path / f"{cut}.db"
        for part in (events[:cut], events[cut:]):
            writer = SqliteWriter(path)
            Pipeline(writer, Metrics()).ingest(encoded(part), transport="http")
            writer.close()
        result = sums(SqliteReader(path))
        assert (result["asked"], result["taken"], result["spared"], result["lookups"]) == (1499, 928, 928, 2), cut


def test_sums_of_a_batch_that_could_not_be_stored_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    writer = SqliteWriter(path)
    pipeline = Pipeline(writer, Metrics())
    writer._db.execute("PRAGMA busy_timeout=50")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        pipeline.ingest(encoded(history(HIT)), transport="http")
    blocker.execute("ROLLBACK")
    pipeline.ingest(encoded(history(HIT)), transport="http")
    assert sums(SqliteReader(path))["asked"] == 1499


def test_long_windows_are_read_by_the_hour_and_agree_with_the_minutes(tmp_path: Path) -> None:
    writer, reader = SqliteWriter(tmp_path / "s.db"), SqliteReader(tmp_path / "s.db")
    start_s = 500_000 * 3600
    minutes = (stored(start_s + 60 * n, "lookups", n) for n in range(300))
    writer.write(Batch(savings=sum(minutes, Counter[StepKey]())))
    writer.write(Batch(savings=stored(start_s, "lookups", 5)))
    short = reader.savings(since_ns=start_s * 10**9, until_ns=(start_s + 5 * 3600) * 10**9)
    long = reader.savings(since_ns=start_s * 10**9, until_ns=(start_s + 48 * 3600) * 10**9)
    assert (len(short), len(long)) == (300, 5)
    assert sum(row.measures["lookups"] for row in short) == sum(row.measures["lookups"] for row in long) == 44_855
    sum(writer.prune(before_ns=(start_s + 3 * 3600) * 10**9))
    assert [row.at_s for row in reader.savings(**EVER)] == [start_s + n * 3600 for n in (2, 3, 4)]


def test_findings_of_several_engines(tmp_path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    for name in ("a", "b"):
        events = history(STALE, engine=name, recorder=name, request=f"{name}-0123abcd")
        pipeline.ingest(encoded(events), transport="http")
    reader = SqliteReader(tmp_path / "s.db")
    assert [f["engine"] for f in reader.findings(FindingFilter(engines=["b"]))] == ["b"]
    assert reader.findings(FindingFilter(engines=[])) == []


def test_pages_are_narrowed_down_to_a_service_a_node_or_a_model(start_tracer: Callable[..., Tracer]) -> None:
    tracer = start_tracer()
    places = {
        "e-1": {"service.name": "chat", "k8s.pod.name": "vllm-0", "host.name": "h", semconv.MODEL.key: "large"},
        "e-2": {"service.name": "chat", "host.name": "h", semconv.MODEL.key: "small"},
        "e-3": {"service.name": "code", "k8s.pod.name": "vllm-2", "host.name": "h", semconv.MODEL.key: "small"},
    }
    for engine, about in places.items():
        tracer.post(encoded(history(STALE, engine=engine, recorder=f"of-{engine}", request=f"r-{engine}"), about))
    choices: tuple[tuple[dict[str, str], set[str]], ...] = (
        ({}, {"e-1", "e-2", "e-3"}),
        ({"service": "chat"}, {"e-1", "e-2"}),
        ({"node": "vllm-2"}, {"e-3"}),
        ({"node": "h"}, {"e-2"}),
        ({"model": "small", "service": "code"}, {"e-3"}),
        ({"model": "none"}, set()),
    )
    for chosen, engines in choices:
        assert {each["engine"] for each in tracer.get("/api/requests", **chosen)} == engines
        assert {each["engine"] for each in tracer.get("/api/findings", **chosen)} == engines
        assert {each["engine"] for each in tracer.get("/api/fleet", **chosen)["engines"]} == engines
        assert (
            set(
                tracer.get("/api/lanes", from_ns=WINDOW["since_ns"], to_ns=WINDOW["until_ns"], **chosen)["requests"][
                    "engine"
                ]
            )
            == engines
        )
        assert {each["engine"] for each in tracer.get("/api/efficiency", **WINDOW, **chosen)["by_place"]} == engines
        assert sum(each["findings"] for each in tracer.get("/api/findings/trend", **WINDOW, **chosen)["counts"]) == len(
            engines
        )
