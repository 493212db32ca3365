"""What is forwarded, when, and what is not: the pipeline with a forwarder, a clock set by the test, and no sender."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from history import goodbyes, heartbeats, history
from known_file import KnownFile
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from test_forward_pieces import foreign, odd_span
from wire import as_request, encoded

from kvtrail.connector.recording.contexts import root_ids
from kvtrail.connector.recording.encoder import field
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest.protobuf import attributes
from kvtrail.tracer.serve.forward.forwarder import HOLD_S, LINGER_S, Forwarder
from kvtrail.tracer.serve.forward.pieces import Piece, joined
from kvtrail.tracer.serve.forward.sender import Sender
from kvtrail.tracer.serve.forward.target import Settings, Target
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.sqlite.store import SqliteWriter

WELL = "start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nend"
DRIFT = "start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nend"


class Outbox(Sender):
    """What would be sent."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.trouble = None

    def put(self, pieces: Sequence[Piece]) -> None:
        self.pieces += pieces

    def close(self, *, drain_s: float) -> None:
        """There is nothing to close."""

    def spans(self, name: str = "") -> list[Span]:
        """Those with names that begin like this, but for those of engines."""
        spans = [Span.FromString(piece.span) for piece in self.pieces]
        return [span for span in spans if span.name.startswith(name) and span.name != semconv.ENGINE_SPAN]

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]


class Sidecar:
    """A pipeline that forwards into an outbox."""

    def __init__(self, folder: Path, **settings: float) -> None:
        self.now_s = 1000.0
        self.outbox, self.metrics = Outbox(), Metrics()
        whole = Settings(Target("http://127.0.0.1:4317"), **{"sample": 0.0, **settings})  # type: ignore[arg-type]
        self.forwarder = Forwarder(whole, self.outbox, self.metrics.forwarding, clock=lambda: self.now_s)
        self.writer = SqliteWriter(folder / "s.db")
        self.known = KnownFile(folder)
        self.pipeline = Pipeline(
            self.writer, self.metrics, forwarder=self.forwarder, known_findings=self.known, grace_ns=0
        )

    def hear(self, events: Sequence[Event]) -> None:
        self.pipeline.ingest(encoded(events), transport="grpc")

    def roots(self) -> list[Span]:
        return [span for span in self.outbox.spans("kv.request") if span.name == "kv.request"]

    def later(self, seconds: float = LINGER_S) -> None:
        self.now_s += seconds
        self.pipeline.tidy()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"kvtrail_forward_{name}", labels)

    def by_reason(self) -> dict[str, float]:
        """How many requests were forwarded, or left out, and why."""
        samples = [s for each in self.metrics.registry.collect() for s in each.samples if s.value]
        return {s.labels["reason"]: s.value for s in samples if s.name == "kvtrail_forward_requests_total"}


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path)
    yield made
    made.pipeline.close()


def named(text: str, request: str, **fields: object) -> list[Event]:
    """The history of one request, by a recorder of its own."""
    events = history(text, request=request, recorder=f"recorder of {request}")
    return [replace(event, **fields) for event in events] if fields else events


def test_only_requests_with_findings_are_forwarded_and_these_in_full(sidecar: Sidecar) -> None:
    sidecar.hear(named(WELL, "well-0123abcd"))
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    assert sidecar.outbox.spans("kv.request") == sidecar.outbox.spans("kv.request.start")  # its root waits
    sidecar.later()
    sent = sidecar.outbox.names()
    (whole,) = as_request(named(DRIFT, "drift-0123abcd")).resource_spans[0].scope_spans
    assert sorted(sent) == sorted(
        [*(span.name for span in whole.spans if span.name != semconv.ENGINE_SPAN), "kv.finding stale-lookup"]
    )
    assert sidecar.by_reason() == {"finding": 1, "left_out": 1}
    roots_of_engines = sum(span.name == semconv.ENGINE_SPAN for span in whole.spans)
    assert sidecar.value("spans_left_out_total") == len(WELL.split("\n")) + 2 * roots_of_engines


def test_a_finding_is_an_event_of_the_root_and_a_span_that_links_to_its_witnesses(sidecar: Sidecar) -> None:
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    (root,) = sidecar.roots()
    (finding,) = sidecar.outbox.spans("kv.finding")
    (event,) = root.events
    about = attributes(event.attributes)
    assert (event.name, about[semconv.FINDING_RULE.key], about[semconv.EPOCH.key]) == ("kv.finding", "stale-lookup", 1)
    assert "at most max(0, 256 - 336) = 0 can be new" in about[semconv.FINDING_EXPLANATION.key]
    assert event.time_unix_nano <= root.end_time_unix_nano
    assert about.items() <= attributes(finding.attributes).items()
    assert attributes(finding.attributes)[semconv.REQUEST_ID.key] == "drift-0123abcd"
    assert finding.status.code == Status.STATUS_CODE_ERROR

    assert (finding.trace_id, finding.parent_span_id) == (root.trace_id, root.span_id)
    assert len(finding.span_id) == 8
    assert finding.span_id not in {span.span_id for span in sidecar.outbox.spans("kv.") if span != finding}
    lookups = sidecar.outbox.spans("kv.lookup")
    linked = {attributes(link.attributes)[semconv.FINDING_WITNESS.key]: link for link in finding.links}
    assert {name: link.span_id for name, link in linked.items()} == {"L1": lookups[0].span_id, "L2": lookups[1].span_id}
    assert {link.trace_id for link in finding.links} == {root.trace_id}
    assert finding.start_time_unix_nano == lookups[0].start_time_unix_nano
    assert finding.end_time_unix_nano == lookups[1].start_time_unix_nano


@pytest.mark.parametrize("is_known", [False, True])
def test_a_known_finding_is_forwarded_and_labelled(sidecar: Sidecar, is_known: bool) -> None:
    sidecar.known.say(rule="stale-lookup" if is_known else "full-hit")
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    (root,) = sidecar.roots()
    (finding,) = sidecar.outbox.spans("kv.finding")
    (event,) = root.events
    for about in (finding.attributes, event.attributes):
        assert attributes(about)[semconv.FINDING_KNOWN.key] is is_known
    assert finding.status.code == Status.STATUS_CODE_ERROR, "it is an error all the same"


def test_the_root_is_as_it_came_but_for_its_events(sidecar: Sidecar) -> None:
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    (root,) = sidecar.roots()
    del root.events[:]
    (whole,) = as_request(named(DRIFT, "drift-0123abcd")).resource_spans[0].scope_spans
    assert root in whole.spans


def test_a_healed_finding_is_no_error(sidecar: Sidecar) -> None:
    healed = DRIFT.replace("-> 256 cached", "-> 0 healed 256").replace("\nA 256\nend", "\nA 0\nend")
    sidecar.hear(named(healed, "healed-0123abcd"))
    (finding,) = sidecar.outbox.spans("kv.finding")
    assert finding.status.code == Status.STATUS_CODE_UNSET
    assert attributes(finding.attributes)[semconv.FINDING_HEALED.key] == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start 749\nL 749 c0 -> !KeyError: 'x'\nend", "finding"),
        ("start 749\nL 749 c0 h256 -> 256 async\nA 256\nR failed\nend", "error"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\ncut off", "error"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\nend error", "error"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\nwait 2 silent\nS 256+80\nend", "slow"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nwait 2 silent\nS 256+80\nend", "slow"),
        ("start 749\nL 749 c0 h256 -> 256\nwait 2 silent\nend", "slow"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nwait 2 silent\nend", "left_out"),
        ("start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nend aborted", "left_out"),
    ],
)
def test_what_failed_and_what_waited_long_matters(tmp_path: Path, text: str, reason: str) -> None:
    sidecar = Sidecar(tmp_path, slow_ns=10**9)
    events = named(text, "r-0123abcd")
    sidecar.hear([event for event in events if event.request])
    sidecar.later()
    assert sidecar.by_reason() == {reason: 1}
    sent = sidecar.outbox.names()
    assert len([name for name in sent if "finding" not in name]) == (0 if reason == "left_out" else len(events))


def test_a_call_that_took_long_matters(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, slow_ns=10**9)
    events = named(WELL, "r-0123abcd")
    events[1] = replace(events[1], end_ns=events[1].start_ns + 10**9)
    sidecar.hear(events)
    sidecar.later()
    assert sidecar.by_reason() == {"slow": 1}


def test_a_share_of_the_rest_is_decided_by_the_trace(tmp_path: Path) -> None:
    """Another sidecar decides alike, and so does OpenTelemetry's own sampler."""
    chosen = []
    for number in range(2):
        (folder := tmp_path / str(number)).mkdir()
        sidecar = Sidecar(folder, sample=0.3)
        for request in range(60):
            sidecar.hear(named("start 749\nL 749 c0 h256 -> 256\nA 256\nend", f"r-{request}-0123abcd"))
        sidecar.later()
        roots = sidecar.roots()
        chosen.append({root.trace_id for root in roots})
        assert sidecar.by_reason() == {"sampled": len(roots), "left_out": 60 - len(roots)}
        assert len(sidecar.outbox.spans("kv.")) == 4 * len(roots)
    assert chosen[0] == chosen[1]
    assert 5 < len(chosen[0]) < 40
    sampler = TraceIdRatioBased(0.3)
    for trace_id in chosen[0]:
        sampled = sampler.should_sample(None, int.from_bytes(trace_id, "big"), "")
        assert sampled.decision is Decision.RECORD_AND_SAMPLE


def test_what_opentelemetrys_sampler_left_out_is_only_sent_if_it_matters(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, sample=1.0)
    sidecar.hear(named(WELL, "well-0123abcd", sampled=False))
    sidecar.hear(named(DRIFT, "drift-0123abcd", sampled=False))
    sidecar.hear(named(WELL, "sampled-0123abcd"))
    sidecar.later()
    assert sidecar.by_reason() == {"left_out": 1, "finding": 1, "sampled": 1}


def test_all_is_sent_at_once_but_the_roots(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, sample=1.0)
    sidecar.hear(named(WELL, "well-0123abcd"))
    assert sidecar.outbox.names() == ["kv.request.start", "kv.lookup", "kv.alloc", "kv.schedule"]
    sidecar.later()
    assert sidecar.outbox.names()[4:] == ["kv.request"]
    assert sidecar.value("held_spans") == sidecar.value("held_bytes") == 0


def test_a_finding_brings_what_was_held_and_then_everything_at_once(sidecar: Sidecar) -> None:
    events = named(DRIFT, "drift-0123abcd")
    sidecar.hear(events[:5])
    assert (sidecar.outbox.names(), sidecar.value("held_spans")) == ([], 5)
    sidecar.hear(events[5:6])
    assert sidecar.outbox.names() == [*(e.kind for e in events[:6]), "kv.finding stale-lookup"]
    sidecar.hear(events[6:7])
    assert sidecar.outbox.names()[-1] == "kv.alloc"


@pytest.mark.usefixtures("forgets_at_once")
def test_a_finding_that_comes_after_the_end_waits_for_nothing(sidecar: Sidecar) -> None:
    """Within the time that an end lingers it brings the request; later, it is sent alone."""
    for request, seconds in (("soon-0123abcd", 0.0), ("late-0123abcd", LINGER_S)):
        events = named(DRIFT, request)
        sidecar.hear([*events[:5], *events[6:]])
        sidecar.later(seconds)
        sidecar.hear(events[5:6])
        sidecar.later()
    roots = sidecar.roots()
    assert [len(root.events) for root in roots] == [1]
    soon, late = sidecar.outbox.spans("kv.finding")
    assert soon.trace_id == roots[0].trace_id
    assert late.trace_id != roots[0].trace_id
    assert late.parent_span_id != b""
    assert sidecar.by_reason() == {"finding": 1, "left_out": 1}


def test_foreign_spans_pass_at_once_and_untouched(sidecar: Sidecar) -> None:
    sidecar.pipeline.ingest(foreign(odd_span(1), odd_span(2)), transport="grpc")
    assert [piece.span for piece in sidecar.outbox.pieces] == [odd_span(1), odd_span(2)]


def test_spans_that_cannot_be_read_are_not_forwarded(sidecar: Sidecar) -> None:
    """They would spoil the others that travel with them."""
    broken = field(1, field(1, b"\xff") + field(2, field(2, odd_span(1))))
    sidecar.pipeline.ingest(broken + foreign(odd_span(1), b"\xff", odd_span(2)), transport="grpc")
    assert [piece.span for piece in sidecar.outbox.pieces] == [odd_span(1), odd_span(2)]
    request = ExportTraceServiceRequest.FromString(joined(sidecar.outbox.pieces))
    assert [len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans] == [2]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_concerns_no_request_follows_the_share(tmp_path: Path, share: float) -> None:
    sidecar = Sidecar(tmp_path, sample=share)
    events = named(
        "start 749\nL 749 c0 h256 -> 256\nevict a\nfailure build_connector_meta !KeyError: 1\nend", "r-0123abcd"
    )
    events = [replace(e, request=None, external=None) if e.kind == semconv.Kind.FAILURE else e for e in events]
    events += heartbeats(events, later_s=5)
    sidecar.hear([*events, *goodbyes(events)])
    sidecar.later()
    of_engine = [name for name in sidecar.outbox.names() if name in ("kv.evict", "kv.failure", "kv.recorder")]
    assert of_engine == (["kv.evict", "kv.failure", "kv.recorder"] if share else ["kv.failure"])


def test_beyond_its_memory_the_oldest_requests_are_decided_early(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, most_bytes=50_000)
    open_ = {f"r-{number}-0123abcd": named(DRIFT, f"r-{number}-0123abcd") for number in range(30)}
    for events in open_.values():
        sidecar.hear(events[:4])
        held = sidecar.value("held_bytes")
        assert held is not None
        assert held <= 50_000
    assert sidecar.outbox.names() == []
    for events in open_.values():
        sidecar.hear(events[4:])
    sidecar.later()
    roots = sidecar.roots()
    assert len(roots) == 30
    assert all(root.events for root in roots)
    early = sidecar.value("decided_early_total")
    assert early is not None
    assert 5 < early < 30
    assert len(sidecar.outbox.spans("kv.request.start")) == 30 - early
    assert sidecar.value("held_spans") == sidecar.value("held_bytes") == 0


def test_many_open_requests_keep_to_the_memory_too(tmp_path: Path) -> None:
    """Including those that are sent completely."""
    sidecar = Sidecar(tmp_path, most_bytes=20_000, sample=1.0)
    for number in range(60):
        sidecar.hear(named("start 749", f"r-{number}-0123abcd"))
    held = sidecar.value("held_bytes")
    assert held is not None
    assert 10_000 < held <= 20_000
    assert len(sidecar.outbox.spans("kv.request.start")) == 60


def test_spans_are_not_held_for_ever(sidecar: Sidecar) -> None:
    events = named(DRIFT, "drift-0123abcd")
    sidecar.hear(events[:4])
    sidecar.later(HOLD_S - 1)
    assert sidecar.value("held_spans") == 4
    sidecar.later(1)
    assert (sidecar.value("held_spans"), sidecar.value("decided_early_total")) == (0, 1)
    sidecar.hear(events[4:])
    sidecar.later()
    assert sidecar.outbox.names() == ["kv.preempt", "kv.lookup", "kv.alloc", "kv.finding stale-lookup", "kv.request"]
    assert sidecar.by_reason() == {"finding": 1}


def test_an_id_that_is_used_again_is_another_request(sidecar: Sidecar) -> None:
    """It may even begin before the one before it is forgotten."""
    events, again = named(DRIFT, "again-0123abcd"), named(WELL, "again-0123abcd")
    again = [replace(e, sequence=n, request_sequence=n, start_ns=e.start_ns + 10**9, end_ns=e.end_ns + 10**9)
             for n, e in enumerate(again, len(events))]  # fmt: skip
    sidecar.hear(events)
    root = root_ids("engine", "again-0123abcd")
    other = root_ids("engine", "again-0123abcd", 1)
    payload = encoded(again).replace(root[:16], other[:16]).replace(root[16:], other[16:])
    sidecar.pipeline.ingest(payload, transport="grpc")
    sidecar.later()
    assert {span.trace_id for span in sidecar.outbox.spans()} == {root[:16]}
    assert sidecar.by_reason() == {"finding": 1, "left_out": 1}


def test_the_end_of_the_sidecar_sends_what_has_a_reason(sidecar: Sidecar) -> None:
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.hear(named(WELL, "well-0123abcd")[:3])
    sidecar.pipeline.close()
    sidecar.forwarder.close()
    assert [name for name in sidecar.outbox.names() if name == "kv.request"] == ["kv.request"]
    assert sidecar.by_reason() == {"finding": 1, "left_out": 1}


def test_what_is_not_stored_is_not_forwarded(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is asked to try again; then it is forwarded, with what was found in it."""

    def full(*_: object) -> None:
        raise StoreError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(sidecar.writer, "write", full)
        with pytest.raises(StoreError):
            sidecar.hear(named(DRIFT, "drift-0123abcd"))
        assert sidecar.outbox.pieces == []
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    assert len(sidecar.outbox.names()) == 9
    assert len(sidecar.outbox.spans("kv.finding")) == 1


def test_what_is_found_between_batches_is_forwarded_too(sidecar: Sidecar) -> None:
    """After an event that never came, the others were waited with."""
    first, _, *rest = named("start 749\nL 749 c0 h0 -> 0\nL 749 c0 h256 -> 512\nA 512\nend", "gap-0123abcd")
    sidecar.hear([first, *rest])
    assert sidecar.outbox.names() == []
    sidecar.later(0)
    assert "kv.finding over-report" in sidecar.outbox.names()
    assert "kv.lookup" in sidecar.outbox.names()


def test_a_finding_that_is_seen_again_is_one_span_and_its_event_has_the_count(sidecar: Sidecar) -> None:
    events = named(DRIFT.replace("cached", "cached\nL 749 c336 h256 -> 256 cached"), "drift-0123abcd")
    for event in events:
        sidecar.hear([event])
    sidecar.later()
    (finding,), (root,) = sidecar.outbox.spans("kv.finding"), sidecar.roots()
    counts = [attributes(each.attributes)[semconv.FINDING_COUNT.key] for each in (finding, root.events[0])]
    assert counts == [1, 2]


def test_a_finding_is_in_the_trace_that_the_scheduler_knows(sidecar: Sidecar) -> None:
    """A worker may not know the caller's: its spans, and a finding that it is the last witness of, are in another trace."""
    events = named(DRIFT, "drift-0123abcd")
    root = root_ids("engine", "drift-0123abcd")
    callers = bytes.fromhex("ca11e4" * 5 + "00")
    load = named(f"{DRIFT}\nload 0/256", "drift-0123abcd")[-1]
    sidecar.hear([replace(load, recorder="worker", sequence=0, request_sequence=0)])
    sidecar.pipeline.ingest(encoded(events).replace(root[:16], callers), transport="grpc")
    known = sidecar.pipeline.detector.findings["engine", "drift-0123abcd"]
    other = dataclasses.replace(next(iter(known.values())), rule="short-load", trace_id=root[:16].hex())
    sidecar.later()
    (finding,), (sent,) = sidecar.outbox.spans("kv.finding stale-lookup"), sidecar.roots()
    assert (finding.trace_id, finding.parent_span_id) == (sent.trace_id, sent.span_id) == (callers, root[16:])
    sidecar.forwarder.found([other])
    assert sidecar.outbox.spans("kv.finding short-load")[0].trace_id == callers


def test_what_has_not_happened_in_time_is_forwarded_too(sidecar: Sidecar) -> None:
    """A finding that no batch brings, but the absence of one."""
    events = named("start 749\nL 749 c0 h256 -> 256 async\nA 256\nb: start 1\nwait 130", "stuck-0123abcd")
    sidecar.hear(events)
    sidecar.later()
    (finding,) = sidecar.outbox.spans("kv.finding stuck-load")
    assert len(sidecar.outbox.spans("kv.alloc")) == 1
    assert {link.span_id for link in finding.links} == {span.span_id for span in sidecar.outbox.spans("kv.alloc")}


def test_a_batch_that_comes_again_changes_nothing_of_its_requests(sidecar: Sidecar) -> None:
    for _ in range(2):
        sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    sidecar.later()
    assert len(sidecar.outbox.names()) == 9
    assert sidecar.value("held_spans") == sidecar.value("held_bytes") == 0


def test_an_error_in_it_costs_no_batch(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(sidecar.forwarder, "received", fails)
    sidecar.hear(named(DRIFT, "drift-0123abcd"))
    assert sidecar.pipeline.spans_stored > 0
    labels = {"where": "forward"}
    assert sidecar.metrics.registry.get_sample_value("kvtrail_internal_errors_total", labels) == 1


def test_late_spans_follow_what_was_decided(sidecar: Sidecar) -> None:
    for request, text in (("drift-0123abcd", DRIFT), ("well-0123abcd", WELL)):
        *events, load = named(f"{text}\nload 0/256", request)
        sidecar.hear(events)
        sidecar.later()
        sidecar.hear([load])
    assert sidecar.outbox.names()[-1] == "kv.load"
    assert len(sidecar.outbox.spans("kv.load")) == 1


def test_ended_requests_are_not_remembered_for_ever(sidecar: Sidecar) -> None:
    sidecar.forwarder._ended.most = 3
    for number in range(10):
        sidecar.hear(named(WELL, f"r-{number}-0123abcd"))
    sidecar.later()
    assert len(sidecar.forwarder._ended) == 3
    assert not sidecar.forwarder._requests
