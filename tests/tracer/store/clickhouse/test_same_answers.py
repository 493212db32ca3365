"""ClickHouse answers whatever is asked as a tracer's own file does."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import pytest
from stores import FleetTracer, clickhouse
from traffic import Engine, served
from wire import as_payload

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ledger.lanes import Window
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.request_outcome import of_ending, outcome_of
from kvtrail.tracer.model import conditions
from kvtrail.tracer.model.grouping import By, OfRequests
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.store import FindingFilter, Selection, Sort
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.duration_bins import percentile
from kvtrail.tracer.store.queries import ASKED_TOGETHER
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.request_rows import StoredRequest

S = 10**9


@dataclass
class Both:
    """The same history in both stores, which ends at `to_ns`."""

    own: Reader
    fleet: ClickHouseReader
    from_ns: int
    to_ns: int

    @cached_property
    def accounts(self) -> list[StoredRequest]:
        """All requests."""
        return self.own.requests(limit=1000)

    def agree(self, question: str, *about: Any, put: Callable[[Any], Any] = lambda answer: answer, **rest: Any) -> Any:
        """Ask both; returns the answer, `put` in a form that can be compared, if it is the same."""
        own, fleet = (put(getattr(reader, question)(*about, **rest)) for reader in (self.own, self.fleet))
        assert fleet == own
        return own


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    to_ns = time.time_ns() - 5 * S
    from_ns = to_ns - 240 * S
    tracer = FleetTracer(tmp_path_factory.mktemp("tracer"), clickhouse())
    for number, pod in enumerate(("vllm-0", "vllm-1", "")):
        engine = Engine(f"engine-{number}")
        events = served(engine, from_ns=from_ns + number, to_ns=to_ns, every_ms=3500, stale_every=9)
        for at in range(0, len(events), 150):
            tracer.hear(events[at : at + 150], service_name="chat", host_name="h", k8s_pod_name=pod)
            tracer.pipeline.storage.write_rows()
            if at % 450 == 0:
                tracer.send()
    some = tracer.local.requests(limit=2)
    tracer.pipeline.ingest(as_payload([_foreign(account) for account in some]), transport="http")
    tracer.send()
    return Both(tracer.local, tracer.fleet, from_ns, to_ns)


def _foreign(account: StoredRequest) -> Span:
    """vLLM's own span of a request, in a trace of its own."""
    return Span(
        trace_id="e" * 32, span_id=f"{account['started_ns']:016x}", parent_id="", name="llm_request", scope="vllm",
        start_ns=account["started_ns"] - S, end_ns=account["last_ns"] + S, error="it failed",
        attributes={"gen_ai.request.id": account["external"], "n": 5, "share": 0.5, "is": True, "all": [1, "a", [None]]},
        resource={"service.name": "vllm", "process.pid": 4}, events=[
            {"name": "exception", "time_ns": account["started_ns"], "attributes": {"exception.type": "E", "depth": 3}}
        ],
    )  # fmt: skip


@pytest.mark.parametrize("limit", [1, 20, 1000])
@pytest.mark.parametrize("status", ["", "finished", "failed", "no such"])
@pytest.mark.parametrize("verdict", ["", "drift", "ok"])
def test_requests(both: Both, limit: int, status: str, verdict: str) -> None:
    page = both.agree("requests", status=status, verdict=verdict, limit=limit)
    if page:
        both.agree("requests", status=status, verdict=verdict, limit=limit, before_ns=page[-1]["started_ns"])
    assert page or status == "no such" or (status, verdict) in {("finished", "drift"), ("failed", "ok")}


def test_requests_by_parts_of_their_ids(both: Both) -> None:
    some = both.accounts[7]
    for text in (some["request"], some["request"][5:12], some["external"], some["trace_id"], "chat-", "-0", "nobody"):
        found = both.agree("requests", search=text, limit=1000)
        assert found or text == "nobody"


def test_requests_of_some_engines(both: Both) -> None:
    for engines in (["engine-1"], ["engine-0", "engine-2"], []):
        filters: tuple[dict[str, Any], ...] = ({}, {"verdict": "drift"}, {"search": "chat-00", "status": "finished"})
        for asked in filters:
            found = both.agree("requests", engines=engines, limit=1000, **asked)
            assert {each["engine"] for each in found} == set(engines)


@pytest.mark.parametrize("sort", Sort)
@pytest.mark.parametrize("verdict", ["", "drift"])
def test_requests_that_are_sorted(both: Both, sort: Sort, verdict: str) -> None:
    found = both.agree("requests", sort=sort, verdict=verdict, limit=10, put=_sortable)
    assert found
    middle_ns = both.accounts[50]["started_ns"]
    both.agree("requests", sort=sort, verdict=verdict, since_ns=middle_ns, limit=1000, put=_sortable)


def _sortable(accounts: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Two requests may have begun at once."""
    return [(account["engine"], account["started_ns"]) for account in accounts]


CONDITIONS = (
    "", "duration > 1s", "duration > 100ms and duration <= 2s", "first_token >= 0ns", "queued < 1h, computed >= 300",
    "held >= 1", "loaded > 0 and new > 0", "evicted >= 1", "prompt = 749", "tenant = nobody",
    "tenant = unknown", "connector = Connector",
    "preemptions >= 1",
)  # fmt: skip


@pytest.mark.parametrize("text", CONDITIONS)
def test_requests_and_their_measures_by_conditions(both: Both, text: str) -> None:
    where = conditions.parsed(text)
    rows = both.agree("requests", where=where, limit=1000, put=_keys)
    assert set(rows) == {
        (each["engine"], each["request"]) for each in both.accounts if all(_meets(each, c) for c in where)
    }
    both.agree(
        "requests", where=where, limit=1000, verdict="drift", engines=["engine-0"], since_ns=both.from_ns, put=_keys
    )
    ever = Selection(since_ns=0, before_ns=2**62, where=where)
    assert both.agree("count", ever) == len(rows)
    both.agree("tokens", ever)
    meant = both.own.requests(where=where, limit=1000)
    names = ["duration"] if text else [*conditions.TIMES]
    for name in names:
        bins = {number: count for _, number, count in both.agree("durations", ever, of=name, step_ns=2**62)}
        values = [row["times"][name] for row in meant if name in row["times"]]
        assert sum(bins.values()) == len(values)
        for share in (0.5, 0.99) if values else ():
            exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
            assert percentile(bins, share) == pytest.approx(max(1000, exact), rel=2**0.125 - 1)


@pytest.mark.parametrize("outcome", Outcome)
def test_requests_and_their_measures_by_outcome(both: Both, outcome: Outcome) -> None:
    states = dict(zip(("engine-0", "engine-1", "engine-2"), EngineState, strict=False))
    meant = [
        f"{engine} {end}" for engine, state in states.items() for end in Outcome if of_ending(end, state) is outcome
    ]
    where = [conditions.Condition(conditions.ENDING, conditions.AMONG, tuple(meant))]
    rows = both.agree("requests", where=where, limit=1000, put=_keys)
    assert rows == _keys(
        [each for each in both.accounts if outcome_of(each.status, each.outcome, states[each["engine"]]) is outcome]
    )
    assert both.agree("count", Selection(since_ns=0, before_ns=2**62, where=where)) == len(rows)


def _keys(accounts: list[StoredRequest]) -> list[tuple[str, str]]:
    return sorted((account["engine"], account["request"]) for account in accounts)


def _meets(account: StoredRequest, condition: conditions.Condition) -> bool:
    """What a condition means, of an account itself."""
    tokens, name = account["tokens"], condition.name
    computed = sum(tokens.values()) - tokens.get("held", 0) - tokens.get("loaded", 0)
    counts = {
        "prompt": account["prompt"], "computed": computed if tokens else None, "recomputed": account["recomputed"],
        "preemptions": account["epoch"], "tenant": account["identity"] or "unknown",
        "connector": account["connector"] or "unknown",
    }  # fmt: skip
    value = account["times"].get(name) if name in conditions.TIMES else counts.get(name, tokens.get(name, 0))
    compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq}
    return value is not None and compare[condition.operator](value, condition.value)


def test_durations_over_time_and_groups(both: Both) -> None:
    whole = Selection(since_ns=both.from_ns, before_ns=both.to_ns)
    some = Selection(since_ns=both.from_ns + S, before_ns=both.to_ns, engines=["engine-0", "engine-2"])
    for which in (whole, some):
        accounts = both.own.requests(
            since_ns=which.since_ns, before_ns=which.before_ns, engines=which.engines, limit=1000
        )
        cells = both.agree("durations", which, of="duration", step_ns=20 * S, put=sorted)
        assert sum(count for *_, count in cells) == sum("duration" in each["times"] for each in accounts)
        starts = {each["started_ns"] // (20 * S) for each in accounts if "duration" in each["times"]}
        assert {stretch for stretch, _, _ in cells} == starts
        assert len(starts) > 5
        for by in (each for each in get_args(OfRequests) if each is not By.MODEL):
            groups = both.agree("groups", which, by=by, of="duration", limit=10)
            assert sum(group.requests for group in groups) == len(accounts)
            assert sum(group.asked for group in groups) == sum(sum(each["tokens"].values()) for each in accounts)
            assert sum(group.held for group in groups) == sum(each["tokens"].get("held", 0) for each in accounts)
    (largest,) = both.agree("groups", whole, by=By.ENGINE, of="duration", limit=1)
    assert largest.bins
    assert largest.loaded


def test_outcomes_of_requests(both: Both) -> None:
    keys = [(account["engine"], account["request"]) for account in both.accounts]
    assert len(keys) > 2 * ASKED_TOGETHER / 10
    outcomes = both.agree("outcomes", [*keys, ("engine-0", "nobody")])
    assert outcomes.keys() == {*keys}
    assert both.agree("outcomes", []) == {}


def test_requests_by_outcome(both: Both) -> None:
    starts = sorted(account["started_ns"] for account in both.accounts)
    for engines in (None, ["engine-1"], []):
        for since_ns, before_ns in ((0, 2**62), (starts[20], starts[60])):
            counts = both.agree(
                "endings", Selection(since_ns=since_ns, before_ns=before_ns, engines=engines), put=sorted
            )
            wanted = [at for at in starts if since_ns <= at < before_ns]
            assert engines is not None or sum(count for *_, count in counts) == len(wanted)


def test_launches(both: Both) -> None:
    launches = both.agree("launches", put=lambda found: sorted(found, key=lambda launch: launch.engine))
    assert [launch.engine for launch in launches] == ["engine-0", "engine-1", "engine-2"]


def test_a_request(both: Both) -> None:
    some = both.accounts[7]
    for id_ in (some["request"], some["external"], some["trace_id"], "chat", "nobody"):
        both.agree("request", id_)
        both.agree("request", id_, engine=some["engine"])
    assert both.agree("request", some["request"], engine="another") is None


def test_the_spans_of_a_request(both: Both) -> None:
    """Of the first two, which have spans of vLLM's own, and of others here and there, the longest among them."""
    accounts = both.accounts
    longest = max(accounts, key=lambda account: account["last_ns"] - account["started_ns"])
    foreign = 0
    for account in (*accounts[:2], *accounts[2 :: len(accounts) // 17], longest):
        spans = both.agree("spans_of", account, put=_sorted)
        foreign += sum(span.scope == "vllm" for span in spans)
        assert spans
    assert foreign >= 2
    assert len(both.fleet.spans_of(longest, limit=3)) == 3


def _sorted(spans: list[Span]) -> list[Span]:
    assert [span.end_ns for span in spans] == sorted(span.end_ns for span in spans)
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))


def test_all_spans_of_a_range(both: Both) -> None:
    for from_ns, to_ns in ((0, 2**62), (both.from_ns + 60 * S, both.from_ns + 120 * S)):
        ours = [
            [span for some in r.spans(since_ns=from_ns, until_ns=to_ns) for span in some]
            for r in (both.own, both.fleet)
        ]
        assert _by_id(ours[0]) == _by_id(ours[1])
        assert ours[0]


def test_the_tail(both: Both) -> None:
    own, fleet = ([span for _, span in r.tail(after=0, limit=100_000)] for r in (both.own, both.fleet))
    assert _by_id(own) == _by_id(fleet)
    numbers = [number for number, _ in both.fleet.tail(after=0, limit=100_000)]
    assert numbers == sorted(set(numbers))
    assert [number for number, _ in both.fleet.tail(after=numbers[4], limit=3)] == numbers[5:8]


def _by_id(spans: list[Span]) -> dict[tuple[str, str], Span]:
    return {(span.trace_id, span.span_id): span for span in spans}


def test_findings(both: Both) -> None:
    findings = both.agree("findings", limit=1000)
    middle_ns = findings[len(findings) // 2]["last_ns"]
    for which in (
        FindingFilter(request=findings[0]["request"]),
        FindingFilter(engines=["engine-0", "engine-2"]),
        FindingFilter(rule="stale-lookup", severity="crash", connector="OffloadConnector"),
        FindingFilter(since_ns=middle_ns),
        FindingFilter(until_ns=middle_ns),
    ):
        assert both.agree("findings", which, limit=1000), which
        assert both.agree("finding_counts", which, step_ns=20 * S, put=sorted), which
        assert both.agree("sightings", which), which
        brief = both.agree("findings_in_brief", which, limit=1000)
        found = both.own.findings(which, limit=1000)
        assert brief == [{name: each[name] for name in brief[0]} for each in found]
    for nothing in (FindingFilter(engines=[]), FindingFilter(rule="no-such")):
        assert both.agree("findings", nothing) == []
    places = [sighting.place for sighting in both.agree("sightings")]
    assert {place.engine for place in places} == {"engine-0", "engine-1", "engine-2"}


@pytest.mark.parametrize("back_s", [300, 7 * 3600])
def test_savings(both: Both, back_s: int) -> None:
    rows = both.agree(
        "savings",
        since_ns=both.to_ns - back_s * S,
        until_ns=both.to_ns + S,
        stretch_s=120,
        put=lambda rows: sorted(rows, key=lambda row: (row.at_s, row.engine, row.epoch)),
    )
    assert {row.engine for row in rows} == {"engine-0", "engine-1", "engine-2"}
    since: dict[str, Any] = {"since_ns": both.to_ns - back_s * S, "until_ns": both.to_ns + S}
    some = both.agree("savings", **since, engines=["engine-0", "engine-2"], put=lambda rows: sorted(rows, key=str))
    assert {row.engine for row in some} == {"engine-0", "engine-2"}
    assert both.agree("savings", **since, engines=[]) == []


def test_engines_and_totals(both: Both) -> None:
    assert both.agree("names")["engine-0"] == "engine-0"
    assert both.agree("engines")["engine-1"]["pod"] == "vllm-1"
    assert both.agree("engines", put=list) == ["engine-0", "engine-1", "engine-2"], "in the order of their arrival"
    assert both.agree("totals")["findings"]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"engines": ["engine-1"], "where": conditions.parsed("duration > 100ms and prompt > 0")},
        {"engines": ["engine-0", "engine-1"]},
        {"status": "finished"},
        {"search": "chat-00"},
    ],
    ids=lambda filters: " ".join(filters) or "all",
)
@pytest.mark.parametrize("live", [[], ["engine-0", "engine-2"]], ids=["none live", "live"])
def test_lanes(both: Both, filters: dict[str, Any], live: list[str]) -> None:
    for begin_s, end_s in ((0, 240), (100, 130), (-500, -400), (235, 10_000)):
        window = Window(from_ns=both.from_ns + begin_s * S, to_ns=both.from_ns + end_s * S, **filters)
        lanes = both.agree("lanes", window, live=live)
        both.agree("marks", window, lanes.lanes, limit=500, put=_ids)


def _ids(findings: list[dict[str, Any]]) -> list[str]:
    return sorted(finding["id"] for finding in findings)


@pytest.mark.parametrize("limit", [1, 7, 40])
def test_a_sample_of_lanes_is_fair_and_has_the_findings_first(both: Both, limit: int) -> None:
    window = Window(from_ns=both.from_ns, to_ns=both.to_ns, limit=limit)
    own, fleet = (r.lanes(window, live=[]) for r in (both.own, both.fleet))
    assert fleet.is_sample
    assert fleet.lanes == own.lanes, "the same lots are drawn"
    assert fleet.has_all_findings == own.has_all_findings
    assert fleet.known == len(both.fleet.lanes(Window(from_ns=both.from_ns, to_ns=both.to_ns), live=[]).lanes)
