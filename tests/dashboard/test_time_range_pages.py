"""What the pages about windows of time say: findings, savings, engines; from data as the tracer gives it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from history import START_NS, history

from kvtrail.dashboard import palette
from kvtrail.dashboard.content import charts, engines, findings, savings, text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.words import NOTHING
from kvtrail.tracer.savings.counter import SavingsCounter
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.savings.sums import savings_of
from kvtrail.tracer.serve.api.ranges import savings_report

HOUR_NS = 3600 * 10**9
NOW_NS = START_NS + HOUR_NS
ALL = TimeRange(START_NS, NOW_NS)
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
    detector = Detector(on_fact=sums.enter, on_causes=lambda _, breakdown: sums.explain(breakdown))
    detector.feed(history(history_text))
    detector.settle()
    listed = [row for row in sums.sums.rows() if asked.get("engine", "") in ("", row.engine)]
    answer = savings_report(listed, connector="", since_ns=START_NS, until_ns=NOW_NS, stretch_s=60)
    data: dict[str, Any] = json.loads(answer.model_dump_json())
    return data


def gauge(answer: dict[str, Any], name: str) -> str:
    return {each: value for each, value, _, _ in savings.cards(answer)}[name]


def test_the_parts_are_all_of_the_tokens() -> None:
    answer = efficiency(PREEMPTED)
    assert savings.sources(answer["worth"]) == {
        "vLLM's own cache": 96,
        "connector's store": 1952,
        "computed": 8196 - 96 - 1952,
    }
    assert list(savings.sources(answer["worth"])) == ["vLLM's own cache", "connector's store", "computed"]


def test_seconds_saved_are_shown_with_where_they_come_from() -> None:
    answer = efficiency(PREEMPTED)["worth"]
    assert answer["prefill_saved_s"] == pytest.approx(1952 / (3072 / 2.002))
    level, sentence = savings.is_it_worth_it(answer)
    assert (level, sentence[:47]) == ("calm", "Worth it: 24.1 % of prefill saved, net. 1.27 s ")
    assert "as measured from its steps" in savings.source_of_savings(answer)


def worth(**changes: Any) -> dict[str, Any]:
    """Sums with 40 of 80 tokens to prefill spared, 8 s of 16."""
    sums = {
        "asked": 100, "local": 20, "spared": 40, "prefill_saved_s": 8.0, "waited_s": 1.0, "postponed_s": 0.5, "load_s": 0.25,
        "store_s": 0.5, "causes": {}, "handed": 0,
    }  # fmt: skip
    return {**sums, **changes}


@pytest.mark.parametrize(
    ("changes", "level", "sentence"),
    [
        (
            {},
            "calm",
            "Worth it: 37.5 % of prefill saved, net. 8.00 s of 16.00 s of prefill saved; 1.50 s in loads, 500 ms",
        ),
        ({"load_s": 3.5}, "calm", "Worth it: 25.0 % of prefill saved, net."),
        (
            {"store_s": 7.0},
            "warning",
            "Not shown to be worth its memory in this range: 8.00 s of 16.00 s of prefill saved, but",
        ),
        (
            {
                "asked": 20_000_020,
                "spared": 2_000,
                "prefill_saved_s": 0.019,
                "waited_s": 0.0,
                "postponed_s": 0.0,
                "load_s": 0.0,
                "store_s": 0.0,
            },
            "warning",
            "Hardly worth its memory in this range: 0.0 % of prefill saved, net. 19 ms of 3 min 10 s of prefill saved;",
        ),
        (
            {"asked": 20_000_020, "spared": 2_000, "prefill_saved_s": None},
            "warning",
            "Hardly worth its memory in this range: it spared 0.0 % of prefill: 2,000 of 20,000,000 tokens. In seconds:",
        ),
        ({"spared": 0, "prefill_saved_s": None}, "warning", "Not worth its memory in this range: nothing was loaded"),
        (
            {
                "spared": 0,
                "prefill_saved_s": None,
                "causes": {"new:": 70, "unaligned:": 3, "evicted:gpu": 7, "held:": 20},
            },
            "calm",
            "Nothing to load in this range: 91.2 % of what was computed could be in no cache.",
        ),
        (
            {"spared": 0, "prefill_saved_s": None, "causes": {"new:": 40, "evicted:gpu": 40}},
            "warning",
            "Not worth its memory in this range: nothing was loaded",
        ),
        (
            {"prefill_saved_s": None},
            "calm",
            "It spared 50.0 % of prefill: 40 of 80 tokens. In seconds: not measured.",
        ),
    ],
)
def test_the_first_line_says_whether_it_is_worth_it(changes: dict[str, Any], level: str, sentence: str) -> None:
    shown = savings.is_it_worth_it(worth(**changes))
    assert shown[0] == level
    assert shown[1].startswith(sentence)


def place(engine: str, *, wanted: int, spared: int) -> dict[str, Any]:
    return {"engine": engine, "connector": "c", "worth": {"asked": wanted + 5, "local": 5, "spared": spared}}


def test_what_another_engine_computed_is_handed_over_and_not_saved() -> None:
    """ "Prefill saved 49.3 %, 1 h 23 min of time" on an engine that decodes, at its own 1.3 tokens/s."""
    loads = SavingsRow(at_s=0, engine="d", connector="Nixl", epoch=0, measures={
        "asked": 1000, "taken": 990, "spared": 990, "cause:loaded:p2p": 900, "prefill": 13, "prefill_ns": 10**10,
    })  # fmt: skip
    sums = json.loads(json.dumps(asdict(savings_of([loads]))))
    assert (sums["handed"], sums["spared"], sums["prefill_saved_s"]) == (900, 90, pytest.approx(90 / 1.3))
    assert savings.saved_share(sums) == 0.9, "of the tokens that it had to prefill itself"
    assert "900 tokens were computed by another engine and handed over" in savings.limits(sums)


def test_copies_that_took_longer_than_they_saved_are_a_net_below_zero() -> None:
    level, sentence = savings.is_it_worth_it({**efficiency(PREEMPTED)["worth"], "store_s": 100.0})
    assert (level, sentence[:51]) == ("warning", "Not shown to be worth its memory in this range: 1.2")


GIB = 2**30


@pytest.mark.parametrize(
    ("recorders", "sentence"),
    [
        ([[(12.3 * GIB, 64 * GIB)]], "It holds 12.3 GiB of 64 GiB of host memory in 1 of 1 engine."),
        ([[(300 * 2**20, 64 * GIB)]], "It holds 300 MiB of 64 GiB of host memory in 1 of 1 engine."),
        (
            [[(None, 4 * GIB), (2 * GIB, 4 * GIB)], [(GIB, 4 * GIB)]],
            "It holds 3 GiB of 8 GiB of host memory on each worker in 2 of 2 engines.",
        ),
        (
            [[(2 * GIB, None)]],
            "It holds 2 GiB of host memory in 1 of 1 engine.",
        ),
        (
            [[(2 * GIB, 4 * GIB)], [(None, 8 * GIB)]],
            "It holds 2 GiB of 4 GiB of host memory in 1 of 2 engines.",
        ),
        ([[(0, 4 * GIB)]], "It holds 0 bytes of 4 GiB of host memory in 1 of 1 engine."),
        (
            [[(None, 8 * GIB)]],
            "How much host memory it holds is not known: no probe of an engine that reports reads it.",
        ),
        ([[]], "How much host memory it holds is not known: no probe of an engine that reports reads it."),
        ([[(2 * GIB, 4 * GIB)], [], []], "It holds 2 GiB of 4 GiB of host memory in 1 of 3 engines."),
    ],
)
def test_the_first_line_says_how_much_memory_is_held(
    recorders: list[list[tuple[float | None, int | None]]], sentence: str
) -> None:
    """What one recorder knows is that of one worker; an engine that is not summed up does not count."""
    with_another: list[list[tuple[float | None, int | None]]] = [*recorders, [(1.0, 2)]]
    listed = [
        {"engine": str(number), "recorders": [{"held_bytes": held, "memory_limit": limit} for held, limit in of_engine]}
        for number, of_engine in enumerate(with_another)
    ]
    summed = [{"engine": str(number)} for number, _ in enumerate(recorders) for _ in range(2)]
    assert savings.memory_held({"by_place": summed}, listed) == sentence


def test_loads_without_waiting_requests_are_not_zero_seconds() -> None:
    """`Waited for KV 0 s in 0 loads` beside 141,054 loaded tokens."""
    assert savings.waits({"load_tokens": 141_054, "waits": 0}) == "no asynchronous load"
    assert savings.waits({"load_tokens": 512, "waits": 2}) == "in 2 loads"
    assert savings.waits({"load_tokens": 0, "waits": 0}) == "in 0 loads"


def test_nothing_is_guessed_where_no_rate_was_measured() -> None:
    answer = efficiency("L 749 c0 h512 -> 512\nA 512\nS 512+237\nend")["worth"]
    assert savings.is_it_worth_it(answer)[1].endswith("In seconds: not measured."), "and not of copies alone"
    assert "is not known" in savings.source_of_savings(answer)
    assert "level `detailed`" in savings.source_of_savings(answer)
    nothing = efficiency("L 749 c0 h0 -> 0\nA 0\nS 0+749\nend")["worth"]
    assert savings.source_of_savings(nothing).startswith("No prefill was saved")


def test_what_is_hidden_and_what_failed_is_said() -> None:
    answer = efficiency("L 749 c0 h? -> 512 async\nA 512\nR failed\nS 0+749\nend")["worth"]
    assert "1 of 1 admission went through a connector that hides" in savings.limits(answer)
    assert "512 tokens were to be loaded and failed." in savings.limits(answer)
    assert savings.limits(efficiency("L 749 c0 h0 -> 0\nA 0\nS 0+749")["worth"]) == ""


def test_unreported_bytes_are_not_known() -> None:
    loads, stores = savings.copy_rows(efficiency("L 749 c0 h512 -> 512\nA 512\nload 512\nend")["worth"])
    assert (loads["Tokens"], loads["Bytes"], loads["Bandwidth"], loads["Workers' time"]) == (
        512,
        NOTHING,
        NOTHING,
        "10 µs",
    )
    assert stores["Tokens"] == 0


def test_another_engine_is_another_engine() -> None:
    assert efficiency(PREEMPTED, engine="another")["by_place"] == []
    named = {**efficiency(PREEMPTED), "engine_names": {"engine": "llama-0"}}
    (place,) = savings.place_rows(named, {"engine": "opt"})
    assert (place["Engine"], place["Model"], place["Spared"]) == ("llama-0", "opt", 1952)
    assert place["Hit rate"] == pytest.approx(1952 / 8196)


@pytest.mark.parametrize(
    ("share", "shown"), [(None, NOTHING), (0, "0 %"), (1, "100 %"), (0.341, "34.1 %"), (0.9999, "100 %")]
)
def test_shares(share: float | None, shown: str) -> None:
    assert text.percent(share) == shown


def trend() -> dict[str, Any]:
    def stretch(rule: str, severity: str, minute: int, count: int) -> dict[str, Any]:
        return {"rule": rule, "severity": severity, "at_ns": minute * 60 * 10**9, "findings": count}

    counts = [
        stretch("late-free", "leak", 61, 9),
        stretch("no-token-left", "crash", 60, 1),
        stretch("no-token-left", "crash", 62, 2),
    ]
    return {"since_ns": 60 * 60 * 10**9, "until_ns": 63 * 60 * 10**9, "step_ns": 60 * 10**9, "counts": counts}


def finding(rule: str, did: str, request: str = "r") -> dict[str, Any]:
    return {"rule": rule, "did": did, "engine": "e", "request": request, "known": None}


def test_what_rules_could_do_and_what_they_did_are_two_columns() -> None:
    """`crash … healed by the guard` was one word for both."""
    full_hit = {
        "rule": "no-token-left", "title": "All of it", "severity": "crash", "findings": 3, "looked_at": 3, "requests": 2,
        "healed": 2, "harmed": 1, "not_known": {"findings": 3, "harmed": 1},
        "first_ns": NOW_NS, "last_ns": NOW_NS,
    }  # fmt: skip
    late_free = {
        "rule": "late-free", "title": "late-free", "severity": "leak", "findings": 9, "looked_at": 1, "requests": 1,
        "healed": 0, "harmed": 0, "not_known": {"findings": 9, "harmed": 0},
        "first_ns": NOW_NS, "last_ns": NOW_NS,
    }  # fmt: skip
    rows = findings.rule_rows([late_free, full_hit])
    assert [(row["Rule"], row["Severity"], row["What they did"], row["Findings"], row["Requests"]) for row in rows] == [
        ("no-token-left", ["crash"], "1 did harm, 2 healed", 3, 2),
        ("late-free", ["leak"], "no harm seen", 9, 1),
    ]
    assert [row["Says"] for row in rows] == ["All of it", "late-free"]


def rule(name: str, not_known: int, **changes: Any) -> dict[str, Any]:
    """A rule with nine findings; `not_known` of them are not known."""
    counts = {"findings": 9, "looked_at": 9, "requests": 9, "healed": 0, "harmed": 0}
    return {
        "rule": name, "title": name, "severity": "leak", **counts, "first_ns": NOW_NS, "last_ns": NOW_NS,
        "not_known": {**counts, "findings": not_known}, **changes,
    }  # fmt: skip


def test_what_is_known_of_a_rule_is_said_and_what_is_known_is_last() -> None:
    crash = rule("expected", 0, severity="crash", harmed=5, first_ns=NOW_NS - HOUR_NS)
    rules = [crash, rule("partly", 4), rule("loud", 9)]
    rows = findings.rule_rows(rules)
    assert [(row["Rule"], row["Known"]) for row in rows] == [
        ("loud", []), ("partly", ["partly known"]), ("expected", ["known"]),
    ]  # fmt: skip
    assert {word for row in rows for word in row["Known"]} <= palette.KNOWN.keys()
    assert all("Known" not in row for row in findings.rule_rows([rule("loud", 9)])), (
        "a column that says nothing is none"
    )
    oldest = findings.rule_rows(rules, oldest_first=True)
    assert oldest[0]["Rule"] == "expected"
    assert oldest[0]["First seen"] == datetime.fromtimestamp((NOW_NS - HOUR_NS) / 1e9, UTC)
    assert findings.known(rules) == 9 + 5
    assert findings.seen(rules[1], now_ns=NOW_NS).startswith("First seen ")
    assert "new" not in findings.seen(rules[2], now_ns=NOW_NS)


def test_one_finding_is_not_said_to_be_seen_13_times() -> None:
    """ "seen 13 times" beside "1 finding": a card says when, and not how often."""
    found = {
        "rule": "no-token-left",
        "count": 13,
        "first_ns": START_NS,
        "last_ns": START_NS + 10**9,
        "numbers": {"held": 5},
    }
    assert findings.sightings(found, now_ns=START_NS) == "rule no-token-left, at 01:24:36.000, last at 01:24:37.000 UTC"


def test_what_did_harm_is_first_and_the_rest_is_said() -> None:
    mild = {
        "rule": "a",
        "title": "A",
        "severity": "leak",
        "findings": 9,
        "looked_at": 9,
        "requests": 9,
        "healed": 0,
        "harmed": 1,
        "trend": [],
        "not_known": {"findings": 9, "harmed": 1},
        "first_ns": NOW_NS,
        "last_ns": NOW_NS,
    }
    severe = {**mild, "rule": "b", "severity": "crash", "healed": 3, "not_known": {"findings": 9, "harmed": 0}}
    assert [row["Rule"] for row in findings.rule_rows([severe, mild])] == ["a", "b"]
    assert findings.impact(harmed=2, healed=3, findings=9) == "2 did harm, 3 healed, 4 without harm seen"


@pytest.mark.parametrize("dark", [False, True])
def test_the_same_data_draws_the_same_charts(dark: bool) -> None:
    answer = efficiency(PREEMPTED)
    for chart, data in (
        (charts.findings_over_time, trend()),
        (charts.sources_over_time, answer),
    ):
        assert chart(data, dark=dark).to_json() == chart(json.loads(json.dumps(data)), dark=dark).to_json()
        legend = chart(data, dark=dark).to_dict().get("encoding", {}).get("color", {}).get("legend")
        assert legend is None, "a legend in a chart that wraps on a phone would lie on the plot and its markers"
    spec, rows = charts.spec_and_rows(charts.findings_over_time(trend(), dark=dark))
    assert list(charts.severity_colours(trend(), dark=dark)) == ["crash", "leak"]
    assert [row["severity"] for row in rows] == ["crash", "leak", "crash"]
    assert "data" not in spec
    assert spec["encoding"]["color"]["scale"]["domain"] == ["crash", "leak"]


def test_while_the_clock_goes_on_within_a_step_the_axis_stays() -> None:
    later = {**trend(), "since_ns": trend()["since_ns"] + 10**9, "until_ns": trend()["until_ns"] - 10**9}
    domains = [
        charts.findings_over_time(each, dark=False).to_dict()["encoding"]["x"]["scale"]["domain"]
        for each in (trend(), later)
    ]
    assert domains[0] == domains[1]
    assert [(at["year"], at["hours"], at["minutes"], at["seconds"]) for at in domains[0]] == [
        (1970, 1, 0, 0),
        (1970, 1, 3, 0),
    ]


def test_tiers_have_colours_in_turn_and_the_others_their_own() -> None:
    answer = {"worth": {"causes": {"loaded:near": 1, "loaded:store": 2, "loaded:far": 3}, "local": 1, "asked": 9}}
    shown = charts.source_colours(answer, dark=True)
    assert list(shown) == ["vLLM's own cache", "near", "connector's store", "far", "computed"]
    assert shown["connector's store"] == palette.GREEN.dark
    assert len(set(shown.values())) == 5


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
        "unrecorded": {},
        "unknown": {},
        "probes_off": [],
        "gives_signs": True,
        "ended_by": None,
    }
    return {**base, "last_ns": NOW_NS, "heard_ns": NOW_NS, "lag_ns": 3_000_000, "connectors": ["C"], **changes}


def engine(name: str, *recorders: dict[str, Any], **changes: Any) -> dict[str, Any]:
    said = {
        "model": "opt",
        "version": "0.32.0",
        "kvtrail": "0.1.0",
        "service": "vllm",
        "host": "gpu-7",
        "open": 2,
        "state": "running",
        "ended_ns": None,
        "ended_by": None,
        "lost": 0,
        "cause": None,
    }
    return {"engine": name * 36, "name": f"pod-{name}", **said, "recorders": list(recorders), **changes}


def test_died_drained_and_silent_are_three_things() -> None:
    """A dead engine was `closed`."""
    died = engine("a", state="died", ended_ns=NOW_NS, ended_by="AssertionError: 256", lost=8)
    silent = engine("b", recorder(last_ns=START_NS), state="lost_contact", ended_ns=START_NS)
    drained = engine("c", state="drained", ended_ns=START_NS)
    ordered = engines.in_order([drained, engine("e"), silent, died, engine("d", service="another")])
    rows = engines.engine_rows(ordered, now_ns=NOW_NS)
    assert [(row["Engine"], row["State"], row["Ended of"], row["Open at its end"]) for row in rows] == [
        ("pod-a", ["died"], "02:24:36: AssertionError: 256", 8),
        ("pod-b", ["lost_contact"], "01:24:36", None),
        ("pod-d", ["running"], None, None),
        ("pod-e", ["running"], None, None),
        ("pod-c", ["drained"], "01:24:36", None),
    ]
    assert not [value for row in rows for value in row.values() if value == "a" * 36], "no UUID"
    assert engines.counts(ordered, ALL) == "1 died; 1 contact lost; 2 running; 1 drained."


def test_only_recorders_that_lose_something_are_listed() -> None:
    listed = [engine("a", recorder(id="fine"), recorder(id="loses", missing=3, lag_ns=12 * 10**9))]
    rows = engines.recorder_rows(listed[0]["recorders"])
    assert [(row["Recorder"], row["Gaps"], row["Lag"]) for row in rows] == [("loses", 3, "12.00 s")]


def test_what_a_recorder_could_not_record_is_shown() -> None:
    odd = recorder(id="odd", unrecorded={"kv.lookup": 1200, "probe.keys": 100}, probes_off=["LMCacheConnectorV1"])
    (row,) = engines.recorder_rows([recorder(id="fine"), odd])
    assert (row["Recorder"], row["Not recorded"]) == ("odd", "kv.lookup 1,200, probe.keys 100")
    assert row["Probes off"] == "LMCacheConnectorV1"


def test_the_tracers_own_prose_keeps_its_code_and_nothing_else() -> None:
    assert text.prose("Source: `a_b` of *x*") == r"Source\: `a_b` of \*x\*"
    assert text.prose("an odd ` one_") == r"an odd \` one\_"


def test_the_engines_count_deaths_in_the_range_as_the_sentences_do() -> None:
    """It counted those of all time: three here, and two there."""

    def engine(state: str, ended_ns: int | None, *, lost: int = 0) -> dict[str, Any]:
        return {"state": state, "ended_ns": ended_ns, "lost": lost, "recorders": []}

    listed = [
        engine("running", None),
        engine("died", START_NS - 1, lost=5),
        engine("died", START_NS, lost=2),
        engine("died", NOW_NS + 1, lost=7),
        engine("drained", START_NS + 1),
    ]
    assert (
        engines.counts(listed, ALL)
        == "1 died; 1 running; 1 drained; not listed: 1 engine that ended before this range."
    )
    assert engines.since(listed, ALL) == [listed[0], *listed[2:]]
    assert engines.counts(listed[:1], ALL) == "1 running."


def test_what_only_engines_that_are_gone_have_saved_does_not_make_it_worth_it() -> None:
    """ "Worth it: 8.4 %" earned by an engine that had died, while both that ran saved nothing."""
    places = [place("dead", wanted=10, spared=5), place("a", wanted=10, spared=0), place("b", wanted=10, spared=0)]
    answer = {"worth": worth(), "by_place": places}
    engines = [
        {"engine": "a", "state": "running"}, {"engine": "b", "state": "running"}, {"engine": "dead", "state": "died"},
    ]  # fmt: skip
    level, said = savings.verdict(answer, engines)
    assert level == "warning"
    assert said.startswith(
        "Not worth its memory now: all that was saved in this range, 50.0 % of prefill, was saved by"
    )
    assert said.endswith("2 engines that run saved nothing.")
    assert savings.verdict(answer, [{"engine": "dead", "state": "running"}, *engines[:2]])[0] == "calm"
    assert savings.verdict(answer, engines[2:])[0] == "calm", "none runs"
