"""What Prometheus is shown of a history: numbers that can be added up, and labels that stay few."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from history import heartbeats, history
from known_file import KnownFile
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from sidecar import Sidecar
from wire import as_request, encoded

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import KeptFor, RetainedHandoff
from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, Side
from kvtrail.tracer.events.semconv import ENGINE_SPAN, POOL_BLOCKS, Kind
from kvtrail.tracer.ledger.handoff_sums import OF_SIDE
from kvtrail.tracer.liveness.recorders import RecorderState
from kvtrail.tracer.serve.metrics.bounded_series import MAX_ENGINES, OTHER, Series
from kvtrail.tracer.serve.metrics.engine_gauges import engine_gauges
from kvtrail.tracer.serve.receive import engines
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteReader

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Measured(Sidecar):
    """A sidecar with a file of known findings, which takes a batch for each part of what it hears."""

    def __init__(self, folder: Path) -> None:
        self.known = KnownFile(folder)
        super().__init__(folder, known_findings=self.known)

    def hear_parts(self, *parts: Sequence[Event]) -> None:
        """Take the events of one recorder, a batch for each part."""
        whole = as_request([event for part in parts for event in part])
        (scope,) = whole.resource_spans[0].scope_spans
        spans = [span for span in scope.spans if span.name != ENGINE_SPAN]
        for part in parts:
            batch = ExportTraceServiceRequest()
            batch.CopyFrom(whole)
            del batch.resource_spans[0].scope_spans[0].spans[:]
            batch.resource_spans[0].scope_spans[0].spans.extend(spans[: len(part)])
            del spans[: len(part)]
            self.take(batch.SerializeToString())

    def value(self, name: str, **labels: str) -> float | None:
        """A sample, with exactly these labels beside engine and connector."""
        known = {"engine": "engine", "connector": "Connector", **labels}
        for sample in (s for family in self.metrics.registry.collect() for s in family.samples):
            if sample.name == name and all(known.get(k) == v for k, v in sample.labels.items()):
                return sample.value
        return None


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Measured]:
    made = Measured(tmp_path)
    yield made
    made.pipeline.close()


def test_an_admission_is_counted_once_and_by_its_epoch(sidecar: Measured) -> None:
    recorded = history(
        """
        L 749 c32 h256 -> 224
        L 749 c32 h256 -> 224
        A 224
        S 256+80
        P
        L 749 c96 h256 -> 0
        A 0
        S 96+80
        end
        """
    )
    sidecar.hear_parts(recorded)
    first, resumed = {"epoch": "first"}, {"epoch": "resumed"}
    assert sidecar.value("kvtrail_lookups_total", answer="hit") == 2
    assert sidecar.value("kvtrail_admissions_total", **first) == 1
    assert sidecar.value("kvtrail_queried_tokens_total", **first) == 749 - 32
    assert sidecar.value("kvtrail_local_hit_tokens_total", **first) == 32
    assert sidecar.value("kvtrail_hit_tokens_total", **first, source="external_unspecified") == 224
    assert sidecar.value("kvtrail_recomputed_tokens_total", **first) == 0
    assert sidecar.value("kvtrail_queried_tokens_total", **resumed) == 749 - 96
    assert sidecar.value("kvtrail_hit_tokens_total", **resumed, source="external_unspecified") == 0
    assert sidecar.value("kvtrail_recomputed_tokens_total", **resumed) == 256 - 96
    assert sidecar.value("kvtrail_requests_total", outcome="stopped") == 1


@pytest.mark.parametrize(
    ("text", "rule", "gauge"),
    [
        ("L 600 c0 h512 -> 512 async\nA 512\nwait 600", "stuck-load", "kvtrail_overdue_loads"),
        ("L 749 c0 h256 -> 256\nA 256\nS 256+493\nend delayed\nwait 2000", "late-free", "kvtrail_overdue_frees"),
    ],
)
def test_what_is_overdue_and_known_is_counted_apart(sidecar: Measured, text: str, rule: str, gauge: str) -> None:
    sidecar.hear_parts(history(text))
    assert [finding["rule"] for finding in SqliteReader(sidecar.store).findings()] == [rule]
    assert (sidecar.value(gauge, known="false"), sidecar.value(gauge, known="true")) == (1, 0)
    sidecar.known.say(rule=rule)
    sidecar.pipeline.tidy()
    assert (sidecar.value(gauge, known="false"), sidecar.value(gauge, known="true")) == (0, 1)


def test_an_engine_has_its_name_with_its_first_number(sidecar: Measured) -> None:
    """An alert that joins them would be another alert once the name came."""
    sidecar.pipeline.ingest(as_request(history("L 256 c0 h256 -> 255")).SerializeToString(), transport="grpc")
    assert sidecar.value("kvtrail_events_received_total") == 2
    page, _ = sidecar.metrics.expose("")
    assert b'kvtrail_engine_info{engine="engine",engine_name="engine",' in page


def test_a_full_hit_leaves_the_last_token_to_be_computed(sidecar: Measured) -> None:
    sidecar.hear_parts(history("L 256 c0 h256 -> 255\nA 255\nS 255+1\nend"))
    assert sidecar.value("kvtrail_recomputed_tokens_total", epoch="first") == 0


def test_of_several_connectors_none_is_blamed_for_what_another_loads(sidecar: Measured) -> None:
    sidecar.hear_parts(history("@one L 749 c0 h256 -> 256\n@two L 749 c0 h512 -> 512\n@one A 0\n@two A 512"))
    assert sidecar.value("kvtrail_recomputed_tokens_total", epoch="first") == 0
    assert sidecar.value("kvtrail_hit_tokens_total", epoch="first", source="external_unspecified") == 512


@pytest.mark.parametrize(
    ("recorded", "counted"),
    [
        (("host:192", "disk:64"), {"host": 192, "disk": 64}),
        (("host:192",), {"external_unspecified": 256}),
        (("moon:256",), {"external_unspecified": 256}),
    ],
)
def test_hits_are_counted_by_source_where_the_sources_add_up(
    sidecar: Measured, recorded: tuple[str, ...], counted: dict[str, int]
) -> None:
    events = history("L 749 c0 h256 -> 256\nA 256")
    sidecar.hear_parts([replace(e, hit_sources=recorded) if isinstance(e, Alloc) else e for e in events])
    sources = ("host", "disk", "moon", "external_unspecified")
    seen = {source: sidecar.value("kvtrail_hit_tokens_total", epoch="first", source=source) for source in sources}
    assert {source: value for source, value in seen.items() if value} == counted


def test_waiting_for_kv_is_timed_and_shown_while_it_lasts(sidecar: Measured) -> None:
    recorded = history("L 749 c0 -> 600 async\nA 600\nwait 130\nb: L 10 c0 h0 -> 0\nR\nA 0\nS 600+80")
    before, after = recorded[:-3], recorded[-3:]
    sidecar.hear_parts(before, after[:1], after[1:])
    assert sidecar.value("kvtrail_wait_duration_seconds_count") == 1
    assert sidecar.value("kvtrail_wait_duration_seconds_sum") == pytest.approx(130, abs=0.1)
    assert sidecar.value("kvtrail_open_loads") == 0
    assert sidecar.value("kvtrail_admissions_total", epoch="first") == 1, "the second allocation admits nothing"


def test_after_a_restart_the_wait_is_timed_and_its_admission_not_counted_again(
    sidecar: Measured, tmp_path: Path
) -> None:
    recorded = history("L 749 c0 -> 600 async\nA 600\nwait 130\nR\nA 0\nS 600+80")
    sidecar.hear_parts(recorded[:3])
    assert sidecar.value("kvtrail_admissions_total", epoch="first") == 1
    sidecar.pipeline.close()
    again = Measured(tmp_path)
    again.hear(recorded[3:])
    assert again.value("kvtrail_admissions_total", epoch="first") == 0
    assert again.value("kvtrail_wait_duration_seconds_sum") == pytest.approx(130, abs=0.1)
    again.pipeline.close()


def test_an_allocation_that_comes_before_its_lookup_is_counted(sidecar: Measured) -> None:
    start, lookup, alloc = history("L 749 c32 h256 -> 224\nA 224")
    sidecar.hear_parts([start, alloc, lookup])
    assert sidecar.value("kvtrail_queried_tokens_total", epoch="first") == 749 - 32


def test_a_load_that_does_not_come_is_shown_with_its_age(sidecar: Measured) -> None:
    sidecar.hear_parts(history("L 749 c0 -> 600 async\nA 600\nwait 130\nb: L 10 c0 h0 -> 0"))
    assert sidecar.value("kvtrail_open_loads") == 1
    assert sidecar.value("kvtrail_open_load_oldest_seconds") == pytest.approx(130, abs=0.1)


def test_kept_blocks_are_shown_until_they_are_free_and_the_leak_is_found(sidecar: Measured) -> None:
    """Their request ended long ago: it must not be forgotten before its blocks are given back."""
    recorded = history("L 300 c0 h0 -> 0\nA 0 [1-10]\nS 0+300\nend delayed [1-10]")
    sidecar.hear_parts(recorded, heartbeats(recorded, later_s=590))
    assert sidecar.value("kvtrail_kept_requests") == 1
    assert sidecar.value("kvtrail_kept_blocks") == 10
    assert sidecar.value("kvtrail_kept_oldest_seconds") == pytest.approx(590, abs=0.1)
    assert not SqliteReader(sidecar.store).findings()


def test_a_leak_is_found_by_the_sidecar(sidecar: Measured) -> None:
    recorded = history("L 300 c0 h0 -> 0\nA 0\nS 0+300\nend delayed")
    sidecar.hear_parts(recorded, heartbeats(recorded, later_s=601))
    (finding,) = SqliteReader(sidecar.store).findings()
    assert finding["rule"] == "late-free"


def test_numbered_transfers_are_timed_from_their_plan_to_their_end(sidecar: Measured) -> None:
    story = "L 749 c0 h0 -> 0\nA 0\nS 0+300\nplan store 0+256 #7\nwait 2\nend\ndone #7"
    sidecar.hear_parts(history(story))
    assert sidecar.value("kvtrail_store_duration_seconds_sum") == pytest.approx(2, abs=0.1)
    assert sidecar.value("kvtrail_load_duration_seconds_count") is None


def test_what_is_lost_is_counted_by_engine(sidecar: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.serve.receive.pipeline.GRACE_NS", -1)
    recorded = history("L 749 c0 h0 -> 0\nA 0\nS 0+80\nend")
    (beat,) = heartbeats(recorded, later_s=1)
    assert isinstance(beat, Heartbeat)
    sidecar.hear_parts(recorded[:2] + recorded[3:], [replace(beat, recorder_dropped=5)])
    assert sidecar.value("kvtrail_events_missing_total") == 1
    assert sidecar.value("kvtrail_events_dropped_total") == 5
    assert sidecar.value("kvtrail_events_outstanding") == 1


def test_a_refused_write_is_counted(sidecar: Measured) -> None:
    blocker = sqlite3.connect(sidecar.store, isolation_level=None)
    sidecar.writer._db.execute("PRAGMA busy_timeout=50")
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        sidecar.pipeline.ingest(encoded(history("L 10 c0 h0 -> 0")), transport="grpc")
    blocker.execute("ROLLBACK")
    assert sidecar.value("kvtrail_store_failures_total") == 1


def test_durations_and_findings_name_a_trace_in_openmetrics(sidecar: Measured) -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend")
    sidecar.hear_parts(events)
    (account,) = SqliteReader(sidecar.store).requests()
    named: dict[str, set[str]] = {}
    for family in openmetrics(sidecar.metrics.expose(OPENMETRICS)[0].decode()):
        for sample in family.samples:
            if sample.exemplar:
                named.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
    assert named == {name: {account["trace_id"]} for name in ("kvtrail_lookup_duration_seconds", "kvtrail_findings")}
    assert account["request"] not in sidecar.metrics.expose(OPENMETRICS)[0].decode()


def test_a_series_that_alerts_look_at_begins_at_0(sidecar: Measured) -> None:
    sidecar.hear_parts(history("L 749 c0 h0 -> 0"))
    assert sidecar.value("kvtrail_findings_total", rule="stale-lookup", severity="crash", known="false") == 0
    for severity in ("wrong output", "broken contract"):
        assert sidecar.value("kvtrail_findings_total", rule="stale-handoff", severity=severity, known="false") == 0
    assert sidecar.value("kvtrail_connector_errors_total", call="kv.alloc") == 0
    assert sidecar.value("kvtrail_events_missing_total") == 0


def test_the_number_of_engines_is_limited_and_a_retired_one_makes_room() -> None:
    registry, series = CollectorRegistry(), Series()
    counter = Counter("c", "c", ("engine",), registry=registry)
    for number in range(MAX_ENGINES + 10):
        series.at(counter, f"engine-{number}").inc()
    assert registry.get_sample_value("c_total", {"engine": OTHER}) == 10
    assert not series.has_own("one more")
    series.retire("engine-0")
    assert registry.get_sample_value("c_total", {"engine": "engine-0"}) is None
    assert series.has_own("one more")


def test_an_engine_without_contact_for_long_leaves_the_metrics(
    sidecar: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar.hear_parts(history("L 749 c0 h0 -> 0"))
    assert sidecar.value("kvtrail_events_received_total") == 2
    monkeypatch.setattr(engines, "SHOW_SILENT_NS", -1)
    sidecar.pipeline.tidy()
    assert sidecar.value("kvtrail_events_received_total") is None
    assert sidecar.value("kvtrail_lookups_total", answer="miss") is None


def test_unknown_connectors_and_outcomes_share_a_label(sidecar: Measured) -> None:
    odd: Callable[[Event, int], Event] = lambda event, n: replace(event, connector=f"Connector{n}")  # noqa: E731
    events = history("L 749 c0 h0 -> 0\n" * 40)
    sidecar.hear_parts([odd(event, n) for n, event in enumerate(events)])
    assert (sidecar.value("kvtrail_lookups_total", answer="miss", connector=OTHER) or 0) > 0


def test_what_cannot_be_judged_has_a_reason(sidecar: Measured) -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+80\nend")
    sidecar.hear_parts([*events[:1], *events[2:]])
    unknown = {
        (sample.labels["rule"], sample.labels["reason"]): sample.value
        for family in sidecar.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kvtrail_unknown_total"
    }
    assert unknown["alloc-mismatch", "lost"] == 1
    by_rule = {rule for rule, _ in unknown}
    for rule in by_rule:
        counted = sum(count for (named, _), count in unknown.items() if named == rule)
        assert counted == sidecar.value("kvtrail_checks_total", rule=rule, verdict="unknown")
    (row,) = SqliteReader(sidecar.store).requests()
    assert (row["verdict"], row["unknown"]) == ("unknown", "lost")
    whole = history("L 749 c0 h256 -> 256\nA 256\nS 256+493\nend", request="whole", recorder="whole", engine="another")
    sidecar.hear_parts(whole)
    (row,) = SqliteReader(sidecar.store).requests(verdict="ok")
    assert row["unknown"] is None


def test_judgements_are_counted_as_they_come_and_not_again_after_a_restart(tmp_path: Path) -> None:
    recorded = history(
        "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nL 749 c336 h256 -> 0\nA 0"
    )

    def checks(sidecar: Measured) -> dict[str, float | None]:
        return {
            verdict: sidecar.value("kvtrail_checks_total", rule="stale-lookup", verdict=verdict)
            for verdict in ("ok", "drift", "unknown")
        }

    first = Measured(tmp_path)
    assert checks(first) == {"ok": None, "drift": None, "unknown": None}
    first.hear_parts(recorded[:2], recorded[2:])
    assert checks(first) == {"ok": 2, "drift": 1, "unknown": None}
    first.pipeline.close()
    again = Measured(tmp_path)
    assert checks(again) == {"ok": None, "drift": None, "unknown": None}
    again.hear_parts(recorded)  # what an exporter sends twice
    assert checks(again) == {"ok": None, "drift": None, "unknown": None}
    again.pipeline.close()


def test_blocks_are_counted_by_why_they_were_looked_at_and_how_they_were(tmp_path: Path) -> None:
    sidecar = Measured(tmp_path)
    right = history("check loaded 9 unknown 2")
    wrong = history(
        "check loaded 9 unknown 2\ncheck loaded 10 unknown 1 wrong drift 3@0 wrong early 4@32 more 3\ncheck held 5\n"
        "check admitted 0 wrong drift 3@0"
    )
    sidecar.hear_parts(right)

    def verdicts(look: str) -> list[float | None]:
        metric = "kvtrail_blocks_checked_total"
        return [sidecar.value(metric, look=look, verdict=verdict) for verdict in ("right", "wrong", "unknown")]

    assert verdicts("loaded") == [7, 0, 2], "an alert sees no increase in a series that begins at 1"
    sidecar.hear_parts(wrong[len(right) :])
    assert (verdicts("loaded"), verdicts("held"), verdicts("computed")) == ([11, 5, 3], [5, 0, 0], [None] * 3)
    assert verdicts("admitted") == [0, 1, 0]


def test_a_look_of_another_version_has_a_label_that_it_shares(tmp_path: Path) -> None:
    sidecar = Measured(tmp_path)
    events = history("check held 5")
    events[-1] = replace(events[-1], check_look="x" * 40)  # type: ignore[call-arg]
    sidecar.hear_parts(events)
    assert sidecar.value("kvtrail_blocks_checked_total", look=OTHER, verdict="right") == 5


def test_what_an_earlier_tracer_has_heard_is_not_missing_after_a_restart(tmp_path: Path) -> None:
    """Only open requests are read back: between their events are those of requests that had ended."""
    reported = ["a: L 749 c0 h0 -> 0\na: A 0\na: S 0+512"]
    reported += [f"r{n}: L 300 c0 h0 -> 0\nr{n}: A 0\nr{n}: S 0+300\nr{n}: end\na: S {512 + n}+1" for n in range(20)]
    recorded = history("\n".join([*reported, "a: S 532+1", "b: L 64 c0 h0 -> 0", "b: A 0", "a: end"]))
    first = Measured(tmp_path)
    first.hear(recorded[:-5])
    assert first.pipeline.events_missing == 0
    first.pipeline.close()
    again = Measured(tmp_path)
    again.hear(recorded[-5:-3])
    again.hear(recorded[-2:])
    assert again.pipeline.events_missing == 1, "what really did not come is counted all the same"
    assert again.value("kvtrail_events_missing_total") == 1
    again.pipeline.close()


NIXL = "NixlConnector"
HANDED_OVER = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
"""


def handoffs(sidecar: Measured, side: Side, outcome: str) -> float | None:
    """The hand-offs that ended so on one side."""
    labels = {"engine": "engine" if side is Side.GIVES else "d", "connector": NIXL}
    return sidecar.value("kvtrail_handoffs_total", side=side, outcome=outcome, **labels)


def test_what_is_kept_for_another_engine_is_shown_by_what_for(sidecar: Measured) -> None:
    """From the request's end until its blocks are given back, whatever becomes of the request that is to read."""
    decode = "<d> start 600\n<d> takes h1 600/600 of a\n<d> L 600 c0 -> 599 async\n<d> A 599"
    story = f"{HANDED_OVER}\n{decode}\nwait 4\n<d> R\nwait 1\nread\nsent"
    recorded = history(story, connector=NIXL)
    given, taken, received = (
        next(number for number, each in enumerate(recorded) if each.kind == kind and (each.engine == "d") is is_decode)
        for kind, is_decode in ((Kind.REQUEST, False), (Kind.HANDOFF, True), (Kind.RECEIVED, True))
    )
    kept = []
    for to in (given, taken, received, len(recorded) - 1):
        sidecar.hear(recorded[: to + 1])
        kept.append(
            {state: sidecar.value("kvtrail_handoffs_kept", state=state) for state in KeptFor}
            | {"blocks": sum(sidecar.value("kvtrail_handoffs_kept_blocks", state=state) or 0 for state in KeptFor)}
        )
    none = dict.fromkeys(KeptFor, 0.0)
    assert kept[0]["blocks"] == -(-600 // (recorded[0].block_size or 1))
    assert [{state: each[state] or 0 for state in KeptFor} for each in kept] == [
        none | {KeptFor.UNCLAIMED: 1},
        none | {KeptFor.WAITING: 1},
        none | {KeptFor.LOADED: 1},
        none,
    ]


@pytest.mark.parametrize(
    ("after", "gives", "takes", "state"),
    [
        ("<d> R\nwait 9\nread\nsent", "read", "loaded", None),
        ("<d> R failed", None, "failed", KeptFor.ABANDONED),
        ("<d> R failed\n<d> end aborted", None, "failed", KeptFor.ABANDONED),
        ("<d> end aborted", None, None, KeptFor.ABANDONED),
        ("<d> end aborted\n<d> R", None, "loaded", KeptFor.LOADED),
        ("<d> end error\n<d> error [1]\n<d> R failed", None, "failed", KeptFor.ABANDONED),
        ("<d> end error\n<d> xfer read failed !ERR\n<d> R failed", None, "failed", KeptFor.ABANDONED),
        ("<d> xfer read failed !ERR\n<d> end error", None, "failed", KeptFor.ABANDONED),
        ("<d> error [1]\n<d> R", None, "failed", KeptFor.LOADED),  # as a vLLM before 0.30 reports it
        ("<d> R failed\nwait 30\nfreed expired\nsent", "expired", "failed", None),
        ("sent", None, None, None),
        ("sent\nwait 30", "freed", None, None),
    ],
)
def test_each_hand_off_is_counted_by_how_it_ends_on_each_side(
    sidecar: Measured, after: str, gives: str | None, takes: str | None, state: KeptFor | None
) -> None:
    decode = "<d> start 600\n<d> takes h1 600/600 of a\n<d> L 600 c0 -> 599 async\n<d> A 599"
    sidecar.hear(history(f"{HANDED_OVER}\n{decode}\n{after}", connector=NIXL))
    for side, expected in ((Side.GIVES, gives), (Side.TAKES, takes)):
        counted = {outcome.value: handoffs(sidecar, side, outcome) for outcome in OF_SIDE[side]}
        assert counted == {outcome.value: float(outcome == expected) for outcome in OF_SIDE[side]}, "they begin at 0"
    kept = {each for each in KeptFor if sidecar.value("kvtrail_handoffs_kept", state=each)}
    assert kept == ({state} if state else set())


@pytest.mark.parametrize(
    ("late", "outcome"),
    [
        ("read", "read"),
        ("wait 4\nread", "read"),
        ("wait 30\nread", "freed"),
        ("freed expired", "expired"),
        ("<d> R", "read"),
    ],
)
def test_the_scheduler_may_be_heard_before_a_worker_of_another_process(
    sidecar: Measured, late: str, outcome: str
) -> None:
    """Why blocks were given back is decided when both are known, and counted once."""
    decode = "<d> start 600\n<d> takes h1 600/600 of a\n<d> L 600 c0 -> 599 async\n<d> A 599"
    worker = f"<w> {late.rpartition(chr(10))[2]}" if "<d>" not in late else late
    waited = late.rpartition("\n")[0]
    events = [
        replace(each, engine="engine", role="worker") if each.engine == "w" else each
        for each in history(f"{HANDED_OVER}\n{decode}\nsent\n{waited}\n{worker}\nwait 30", connector=NIXL)
    ]
    sidecar.hear(events)
    counted = {each.value: handoffs(sidecar, Side.GIVES, each) for each in OF_SIDE[Side.GIVES]}
    assert counted == {each.value: float(each == outcome) for each in OF_SIDE[Side.GIVES]}


def test_a_hand_off_that_its_reader_declines_is_counted_as_declined(sidecar: Measured) -> None:
    declined = "<d> s: start 1\n<d> s: declines h1 600/1\n<d> s: end aborted"
    events = history(f"{HANDED_OVER}\n{declined}\nread\nsent", connector=NIXL)
    sidecar.hear(events[:-2])
    assert sidecar.value("kvtrail_handoffs_kept", state=KeptFor.ABANDONED) == 1
    sidecar.hear(events[-2:])
    counted = {outcome.value: handoffs(sidecar, Side.TAKES, outcome) for outcome in OF_SIDE[Side.TAKES]}
    assert counted == {"loaded": 0, "failed": 0, "not_loaded": 0, "declined": 1}
    assert handoffs(sidecar, Side.GIVES, "read") == 1


def test_a_recorder_says_how_large_the_pool_of_its_engine_is(sidecar: Measured) -> None:
    events = history("L 10 c0 h0 -> 0")
    sidecar.pipeline.ingest(encoded(events, {POOL_BLOCKS.key: 400}), transport="grpc")
    sidecar.pipeline.tidy()
    assert sidecar.value("kvtrail_pool_blocks") == 400


def test_after_a_restart_no_hand_off_is_counted_again(sidecar: Measured, tmp_path: Path) -> None:
    decode = "<d> start 600\n<d> takes h1 600/600 of a\n<d> L 600 c0 -> 599 async\n<d> A 599\n<d> R"
    recorded = history(f"{HANDED_OVER}\n{decode}\nwait 2\nread\nsent", connector=NIXL)
    sidecar.hear(recorded[:-1])
    sidecar.pipeline.close()
    again = Measured(tmp_path)
    again.hear(recorded[-1:])
    assert handoffs(again, Side.GIVES, "read") == 1
    assert not handoffs(again, Side.TAKES, "loaded")
    again.pipeline.close()


def test_what_is_not_kept_any_more_for_one_reason_is_shown_as_0() -> None:
    """A gauge keeps what it was set to: each state is set as soon as one of them is kept."""
    (event,) = history("start 64")
    recorder = RecorderState.of(event, {})
    kept = RetainedHandoff(recorder.engine, "r", "", KeptFor.WAITING, blocks=4, tokens=64, age_ns=2 * 10**9)
    (gauges,) = engine_gauges([recorder], Detector(), [kept], lambda _: False)
    shown = {state: gauges.values["handoffs_kept_blocks", state] for state in KeptFor}
    assert shown == {**dict.fromkeys(KeptFor, 0), KeptFor.WAITING: 4}
    assert gauges.values["handoffs_kept_oldest_seconds", KeptFor.WAITING] == 2
