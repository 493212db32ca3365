"""What the pages about windows of time say: findings, efficiency, fleet; from data as the tracer gives it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from history import START_NS, history

from kvtrail.dashboard.content import charts, findings, fleet, text
from kvtrail.dashboard.content import efficiency as savings
from kvtrail.dashboard.content.time_range import RANGES, TimeRange, time_range
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.savings import SavingsCounter, SavingsRow
from kvtrail.tracer.model.words import NOTHING
from kvtrail.tracer.serve.api_ranges import savings_report

HOUR_NS = 3600 * 10**9
NOW_NS = START_NS + HOUR_NS
PREEMPTED = """
L 4096 c0 h1024 -> 1024
A 1024
S 1024+1024
wait 1
S 2048+2048
wait 1
S 4096+1
P
L 4100 c96 h1024 -> 928
A 928
S 1024+3076
end
"""


def efficiency(history_text: str, **asked: str) -> dict[str, Any]:
    """The api's answer about the window of this history, as JSON gives it."""
    sums = SavingsCounter()
    Detector(listener=sums.enter).feed(history(history_text))
    rows: dict[tuple[int, str, str, int], dict[str, int]] = {}
    for cell, value in sums.cells.items():
        rows.setdefault(cell[:4], {})[cell.measure] = value
    listed = [SavingsRow(at_s=a, engine=e, connector=c, epoch=p, measures=m) for (a, e, c, p), m in rows.items()]
    answer = savings_report(
        listed, engine=asked.get("engine", ""), connector="", since_ns=START_NS, until_ns=NOW_NS, stretch_s=60
    )
    data: dict[str, Any] = json.loads(answer.model_dump_json())
    return data


def gauge(answer: dict[str, Any], name: str) -> str:
    return {each: value for each, value, _ in savings.cards(answer)}[name]


def test_the_parts_are_all_of_the_tokens() -> None:
    answer = efficiency(PREEMPTED)
    assert savings.sources(answer["worth"]) == {
        "vLLM's own cache": 96,
        "connector's store": 1952,
        "computed": 8196 - 96 - 1952,
    }
    assert list(savings.sources(answer["worth"])) == ["vLLM's own cache", "connector's store", "computed"]


def test_each_epoch_has_its_shares() -> None:
    rows = {(row["epoch"], row["source"]): row["share"] for row in savings.epoch_rows(efficiency(PREEMPTED))}
    assert rows["first run", "connector's store"] == "1,024 (25.0 %)"
    assert rows["after 1 preemption", "connector's store"] == "928 (22.6 %)"
    assert rows["after 1 preemption", "vLLM's own cache"] == "96 (2.3 %)"


def test_seconds_saved_are_shown_with_where_they_come_from() -> None:
    answer = efficiency(PREEMPTED)["worth"]
    assert answer["prefill_saved_s"] == pytest.approx(1952 / (3072 / 2.002))
    assert gauge(answer, "Prefill saved") == "1.27 s"
    assert "(here 1,534 tokens/s)" in savings.source_of_savings(answer)


def test_nothing_is_guessed_where_no_rate_was_measured() -> None:
    answer = efficiency("L 749 c0 h512 -> 512\nA 512\nS 512+237\nend")["worth"]
    assert gauge(answer, "Prefill saved") == NOTHING
    assert "is not known" in savings.source_of_savings(answer)
    assert "level `detailed`" in savings.source_of_savings(answer)
    nothing = efficiency("L 749 c0 h0 -> 0\nA 0\nS 0+749\nend")["worth"]
    assert savings.source_of_savings(nothing).startswith("No prefill was saved")


def test_what_is_hidden_and_what_failed_is_said() -> None:
    answer = efficiency("L 749 c0 h? -> 512 async\nA 512\nR failed\nS 0+749\nend")["worth"]
    assert "1 of 1 admission went through a connector that hides" in savings.limits(answer)
    assert "512 tokens were to be loaded and failed." in savings.limits(answer)
    assert savings.limits(efficiency("L 749 c0 h0 -> 0\nA 0\nS 0+749")["worth"]) == ""


def test_bytes_that_nobody_reported_are_not_known() -> None:
    loads, stores = savings.copy_rows(efficiency("L 749 c0 h512 -> 512\nA 512\nload 512\nend")["worth"])
    assert (loads["Tokens"], loads["Bytes"], loads["Bandwidth"], loads["Workers' time"]) == (
        "512",
        NOTHING,
        NOTHING,
        "10 µs",
    )
    assert stores["Tokens"] == "0"


def test_another_engine_is_another_engine() -> None:
    assert efficiency(PREEMPTED, engine="another")["by_place"] == []
    named = {**efficiency(PREEMPTED), "engine_names": {"engine": "llama-0"}}
    (place,) = savings.place_rows(named, {"engine": "opt"})
    assert (place["Engine"], place["Model"], place["Spared"], place["Preemptions"]) == ("llama-0", "opt", 1952, 1)
    assert place["Hit rate"] == pytest.approx(1952 / 8196 * 100)


@pytest.mark.parametrize(
    ("share", "shown"), [(None, NOTHING), (0, "0 %"), (1, "100 %"), (0.341, "34.1 %"), (0.9999, "100 %")]
)
def test_shares(share: float | None, shown: str) -> None:
    assert text.percent(share) == shown


def trend() -> dict[str, Any]:
    def stretch(rule: str, severity: str, minute: int, count: int) -> dict[str, Any]:
        return {"rule": rule, "severity": severity, "at_ns": minute * 60 * 10**9, "findings": count}

    counts = [
        stretch("lock-leak", "leak", 61, 9),
        stretch("full-hit", "crash", 60, 1),
        stretch("full-hit", "crash", 62, 2),
    ]
    return {"since_ns": 60 * 60 * 10**9, "until_ns": 63 * 60 * 10**9, "step_ns": 60 * 10**9, "counts": counts}


def test_rules_are_listed_the_worst_first_with_their_trend() -> None:
    rows = findings.rule_rows(trend(), [{"id": "full-hit", "title": "All of it"}])
    assert [(row["Rule"], row["Findings"], row["Trend"], row["Says"]) for row in rows] == [
        ("full-hit", 3, [1, 0, 2], "All of it"),
        ("lock-leak", 9, [0, 9, 0], "lock-leak"),
    ]
    assert findings.total(trend()) == 12


def test_the_same_data_draws_the_same_charts() -> None:
    answer = efficiency(PREEMPTED)
    for chart, data in (
        (charts.findings_chart, trend()),
        (charts.sources_chart, answer),
        (charts.epochs_chart, answer),
    ):
        assert chart(data).to_json() == chart(json.loads(json.dumps(data))).to_json()
    drawn = charts.findings_chart(trend()).to_dict()
    assert [row["severity"] for row in drawn["data"]["values"]] == ["crash", "leak", "crash"]
    assert drawn["layer"][0]["encoding"]["x"]["scale"]["domain"] == [3_600_000, 3_780_000]


def test_an_address_names_a_window_or_a_range() -> None:
    def seconds(held: TimeRange) -> float:
        return (held.until_ns - held.since_ns) / 1e9

    usual = time_range(chosen="?", since="", until="", now_ns=NOW_NS)
    assert (seconds(usual), usual.until_ns, usual.pinned) == (RANGES["1 h"], NOW_NS, False)
    assert seconds(time_range(chosen="6 h", since="5", until="", now_ns=NOW_NS)) == RANGES["6 h"]
    pinned = time_range(chosen="6 h", since="1764725076000", until="1764728676000", now_ns=NOW_NS)
    assert (pinned.pinned, seconds(pinned)) == (True, 3600)
    assert time_range(chosen="6 h", **pinned.address, now_ns=NOW_NS) == pinned
    assert pinned.text(now_ns=NOW_NS) == "01:24:36 to 02:24:36 UTC"
    for since, until in (("2", "1"), ("x", "9"), ("1" * 400, "2" * 400), ("-1", "5")):
        assert not time_range(chosen="1 h", since=since, until=until, now_ns=NOW_NS).pinned


def recorder(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "r" * 16,
        "engine": "a" * 36,
        "engine_name": "llama-0",
        "kvtrail": "0.1.0",
        "service": "vllm",
        "model": "opt",
        "received": 9,
        "dropped": 0,
        "missing": 0,
        "status": "running",
        "untold": {},
        "unknown": {},
        "probes_off": [],
        "gives_signs": True,
    }
    return {**base, "last_ns": NOW_NS, "heard_ns": NOW_NS, "lag_ns": 3_000_000, "connectors": ["C"], **changes}


def engine(name: str, *recorders: dict[str, Any]) -> dict[str, Any]:
    said = {
        "model": "opt",
        "version": "0.32.0",
        "kvtrail": "0.1.0",
        "service": "vllm",
        "host": "gpu-7",
        "open": 2,
        "is_heard": False,
    }
    return {"engine": name * 36, "name": f"pod-{name}", **said, "recorders": list(recorders)}


def test_an_engine_is_as_alive_as_its_liveliest_recorder() -> None:
    gone = engine("b", recorder(status="closed", last_ns=START_NS))
    listed = [engine("c"), gone, engine("a", recorder(status="closed"), recorder())]
    rows = fleet.engine_rows(listed, now_ns=NOW_NS)
    assert [(row["Engine"], row["State"]) for row in rows] == [
        ("pod-a", "live"), ("pod-b", "closed"), ("pod-c", "not seen since the tracer started"),
    ]  # fmt: skip
    elsewhere = {**engine("d"), "is_heard": True}
    (row,) = fleet.engine_rows([elsewhere], now_ns=NOW_NS)
    assert (row["State"], row["Recorders"]) == ("live", 0), "another process hears its recorders"
    assert ("Engines live", "1", "of 1 engine ever seen") in fleet.counts(
        {"engines": [elsewhere], "tracer": {"open": 2}}, now_ns=NOW_NS
    )
    assert (rows[0]["Host"], rows[0]["kvtrail"], rows[0]["Id"]) == ("gpu-7", "0.1.0", "a" * 36)


def test_whoever_loses_something_is_on_top() -> None:
    listed = [engine("a", recorder(id="fine"), recorder(id="loses", missing=3, lag_ns=12 * 10**9))]
    rows = fleet.recorder_rows(listed[0]["recorders"], now_ns=NOW_NS)
    assert [(row["Recorder"], row["Gaps"], row["Lag"]) for row in rows] == [
        ("loses", 3, "12.00 s"),
        ("fine", 0, "3 ms"),
    ]
    numbers = fleet.counts({"engines": listed, "tracer": {"open": 2}}, now_ns=NOW_NS)
    assert {name: value for name, value, _ in numbers} == {
        "Engines live": "1", "Recorders live": "2", "Open requests": "2", "Longest lag": "12.00 s", "Dropped": "0",
        "Gaps": "3",
    }  # fmt: skip


def test_what_a_recorder_could_not_tell_is_shown() -> None:
    odd = recorder(id="odd", untold={"kv.lookup": 1200, "probe.keys": 100}, probes_off=["LMCacheConnectorV1"])
    first, second = fleet.recorder_rows([recorder(id="fine"), odd], now_ns=NOW_NS)
    assert (first["Recorder"], first["Not told"]) == ("odd", "kv.lookup 1,200, probe.keys 100")
    assert (first["Probes off"], second["Not told"], second["Probes off"]) == ("LMCacheConnectorV1", None, None)


def test_the_tracers_own_prose_keeps_its_code_and_nothing_else() -> None:
    assert text.prose("Source: `a_b` of *x*") == r"Source\: `a_b` of \*x\*"
    assert text.prose("an odd ` one_") == r"an odd \` one\_"
    assert text.paragraphs("A title.\n\n    Two\n    lines.\n\n  Three.", without="A title") == "Two lines.\n\nThree."
