"""One odd span costs one span: a slice of `benchmarks/odd_spans.py`, and each safeguard alone."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import malformed_input
import pytest
from history import history
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from processes import until
from saved import stored
from sidecar import Sidecar
from wire import as_request, encoded, to_json_line

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS, Event, Lookup
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.decode import MalformedOtlp
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.lanes import lane_of
from kvtrail.tracer.ledger.phases import Phases
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.savings.counter import SavingsCounter
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import receiving, storing
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.sqlite.store import SqliteReader

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nend"
PROTOBUF = {"content-type": "application/x-protobuf"}


class Careful(Sidecar):
    """A sidecar with a trace file, which waits for missing events."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, grace_ns=GRACE_NS)

    def send(self, *requests: ExportTraceServiceRequest | bytes) -> None:
        """Take one batch with the spans of all requests."""
        parts = (each if isinstance(each, bytes) else each.SerializeToString() for each in requests)
        self.pipeline.ingest(b"".join(parts), transport="grpc")

    def error_count(self, where: str) -> float | None:
        return self.value("kvtrail_internal_errors_total", where=where)

    def requests(self) -> dict[str, dict[str, Any]]:
        return {row["request"]: row.account() for row in self.reader.requests()}


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Careful]:
    made = Careful(tmp_path)
    yield made
    made.pipeline.close()


def story(name: str, text: str = STORY) -> ExportTraceServiceRequest:
    return as_request(history(text, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=f"engine-{name}"))


def failing(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError("an error in kvtrail")


@pytest.mark.parametrize("seed", range(2))
def test_odd_spans_cost_themselves_alone(tmp_path: Path, seed: int) -> None:
    tried = malformed_input.tried(tmp_path, seed, lives=2, batches=4)
    assert tried.inputs > 100
    assert tried.malformed > 50
    assert not tried.errors


def test_an_unreadable_span_is_reported_and_the_others_are_stored(sidecar: Careful) -> None:
    whole = story("odd").SerializeToString()
    damaged = whole.replace(b"kv.alloc", b"kv.allo\xff")
    answer = sidecar.client.post("/v1/traces", content=story("good").SerializeToString() + damaged, headers=PROTOBUF)
    accepted = ExportTraceServiceResponse.FromString(answer.content)
    assert (answer.status_code, accepted.partial_success.rejected_spans) == (200, 1)
    assert "UTF-8" in accepted.partial_success.error_message
    assert sidecar.requests()["good-0123abcd"]["status"] == "finished"
    assert len(sidecar.reader.tail(after=0)) == 2 * 5 - 1


def test_a_request_in_json_with_an_unreadable_span_is_refused(sidecar: Careful) -> None:
    line = to_json_line(story("good").SerializeToString())
    body = json.loads(line)
    body["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["traceId"] = "abc"
    answer = sidecar.client.post("/v1/traces", json=body)
    assert answer.status_code == 400
    assert "non-hexadecimal" in answer.text
    assert sidecar.reader.tail(after=0) == []


def test_what_many_spans_share_is_kept_once() -> None:
    """Beside a span that cannot be read: a resource of 100 kB and 200 spans are not 20 MB."""
    request = ExportTraceServiceRequest()
    request.MergeFrom(story("odd"))
    (resource_spans,) = request.resource_spans
    (scope_spans,) = resource_spans.scope_spans
    resource_spans.resource.attributes.add(key="long").value.string_value = "x" * 100_000
    spans = [*scope_spans.spans]
    scope_spans.spans.extend(spans * 40)
    damaged = request.SerializeToString().replace(b"kv.alloc", b"kv.allo\xff", 1)
    rest, parts, refused = ProtobufDecoder().salvaged(damaged)
    assert sum(decoded.spans for _, decoded in parts) == 41 * len(spans) - 1
    assert refused is not None
    assert refused.spans == 1
    read = ExportTraceServiceRequest.FromString(rest)
    assert len(read.resource_spans[0].scope_spans[0].spans) == 41 * len(spans) - 1
    assert read.resource_spans[0].resource == resource_spans.resource
    assert read.resource_spans[0].scope_spans[0].scope == scope_spans.scope
    assert len(read.resource_spans) == len(read.resource_spans[0].scope_spans) == 1


@pytest.mark.parametrize("where", ["resource", "scope"])
def test_where_what_spans_share_cannot_be_read_they_are_refused(where: str) -> None:
    """And those of others are stored."""
    odd, good = story("odd"), story("good")
    if where == "resource":
        odd.resource_spans[0].resource.attributes.add(key="name").value.string_value = "NAME"
    else:
        odd.resource_spans[0].scope_spans[0].scope.version = "NAME"
    damaged = good.SerializeToString() + odd.SerializeToString().replace(b"NAME", b"NAM\xff")
    rest, parts, refused = ProtobufDecoder().salvaged(damaged)
    assert refused is not None
    assert refused.spans == 5
    assert [decoded.spans for _, decoded in parts] == [5]
    assert ProtobufDecoder().spans(rest) == ProtobufDecoder().spans(good.SerializeToString())


def test_a_malformed_span_holds_no_frames() -> None:
    """A request may have 50,000 of them."""
    odd = story("odd")
    for span in odd.resource_spans[0].scope_spans[0].spans:
        del span.attributes[:]
    malformed = ProtobufDecoder().decoded(odd.SerializeToString()).malformed
    assert len(malformed) == 5
    assert not any(each.__traceback__ or each.__cause__ or each.__context__ for each in malformed)


def test_a_request_without_one_span_that_can_be_read_is_refused_for_good(sidecar: Careful) -> None:
    damaged = story("odd").SerializeToString().replace(b"kv.", b"kv\xff")
    with pytest.raises(MalformedOtlp, match="UTF-8"):
        sidecar.send(damaged)
    assert sidecar.client.post("/v1/traces", content=damaged, headers=PROTOBUF).status_code == 400


def test_an_unexpected_error_asks_the_sender_to_try_again(sidecar: Careful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.writer, "write", failing)
    answer = sidecar.client.post("/v1/traces", content=story("good").SerializeToString(), headers=PROTOBUF)
    assert answer.status_code == 503
    assert sidecar.error_count("ingest") == 1
    monkeypatch.undo()
    assert sidecar.client.post("/v1/traces", content=story("good").SerializeToString(), headers=PROTOBUF).is_success
    assert sidecar.requests()["good-0123abcd"]["verdict"] == "ok"


def test_an_endpoint_that_fails_is_counted_and_says_so(sidecar: Careful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteReader, "totals", failing)
    answer = sidecar.client.get("/api/totals")
    assert (answer.status_code, answer.json()["detail"]) == (500, "an error in kvtrail itself: ZeroDivisionError")
    assert sidecar.error_count("api") == 1


@pytest.mark.parametrize(
    ("owner", "name", "where"),
    [
        (Phases, "enter", "phases"),
        (SavingsCounter, "enter", "savings"),
        (Metrics, "_count_fact", "metrics"),
        (storing, "lane_of", "rows"),
        (decode, "event", "decode"),
    ],
)
def test_an_error_where_something_is_only_noted_refuses_nothing(
    sidecar: Careful, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, where: str, caplog: Any
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing)
        sidecar.send(story("first"))
        sidecar.send(story("second"))
        until(lambda: (sidecar.error_count(where) or 0) >= 2)
    assert caplog.text.count("an error in kvtrail itself") == 1, "reported once for each place in the code"
    assert len(sidecar.reader.tail(after=0)) == 10
    sidecar.send(story("third"))
    assert sidecar.requests()["third-0123abcd"]["verdict"] == "ok"


def test_an_error_in_the_detector_costs_the_event_that_it_met(
    sidecar: Careful, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = sidecar.pipeline.detector.feed

    def fails_at_lookups_of_odd(events: list[Event], **more: Any) -> list[Finding]:
        for event in events:
            feed([event], **more)
            if isinstance(event, Lookup) and event.request == "odd-0123abcd":
                raise ZeroDivisionError
        return [f for held in sidecar.pipeline.detector.findings.values() for f in held.values()]

    monkeypatch.setattr(sidecar.pipeline.detector, "feed", fails_at_lookups_of_odd)
    stale = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"
    sidecar.send(story("good"), story("odd"), story("stale", stale))
    found = {name: row["verdict"] for name, row in sidecar.requests().items()}
    assert found == {"good-0123abcd": "ok", "odd-0123abcd": "unknown", "stale-0123abcd": "drift"}
    assert len(sidecar.reader.findings()) == 1
    assert (sidecar.error_count("detector") or 0) >= 1


@pytest.mark.parametrize("part", ["settle", "forget_finished"])
def test_an_error_in_one_part_of_the_tidying_leaves_the_others(
    sidecar: Careful, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(sidecar.pipeline.detector, part, failing)
    shown: list[int] = []
    monkeypatch.setattr(sidecar.pipeline.engines, "show", lambda detector, known, now_ns: shown.append(now_ns))
    sidecar.send(story("good"))
    sidecar.pipeline.tidy()
    assert sidecar.error_count("tidy") == 1
    assert shown


def test_a_row_that_no_database_can_hold_is_left_out(sidecar: Careful) -> None:
    """An account with something else in place of a text, and one with too large a number: the rest of the batch is stored."""
    sidecar.send(story("good"), story("odd"))
    accounts = sidecar.pipeline.detector.accounts
    odd, good = accounts["engine-odd", "odd-0123abcd"], accounts["engine-good", "good-0123abcd"]
    odd.started_ns, good.lookups = 2**70, 7
    sidecar.pipeline.judge.dirty |= dict.fromkeys(accounts)
    sidecar.pipeline.tidy()
    assert sidecar.error_count("store") == 1, "its row"
    assert sidecar.requests()["good-0123abcd"]["lookups"] == 7
    sidecar.send(story("later"))
    assert "later-0123abcd" in sidecar.requests()


def test_sums_that_outgrow_the_database_stop_growing(sidecar: Careful) -> None:
    now_s = time.time_ns() // 10**9
    for _ in range(3):
        assert not sidecar.writer.write(Batch(savings=stored(now_s, "lookup_ns", 2**62)))
    assert not sidecar.writer.write(Batch(savings=stored(now_s, "lookup_ns", 2**80, connector="d")))
    assert sidecar.client.get("/api/efficiency").status_code == 200
    sidecar.send(story("good"), story("other"))
    for account in sidecar.pipeline.detector.accounts.values():
        account.loaded, account.stored = 2**63 - 1, 2**90
    sidecar.pipeline.judge.dirty |= dict.fromkeys(sidecar.pipeline.detector.accounts)
    sidecar.pipeline.tidy()
    assert sidecar.error_count("store") == 0
    assert sidecar.client.get("/api/totals").json()["loaded"] > 2**62
    assert sidecar.client.get("/api/requests").is_success


def test_a_lookup_that_promises_everything_breaks_no_page(sidecar: Careful) -> None:
    odd = story("odd")
    now_ns = time.time_ns()
    for span in odd.resource_spans[0].scope_spans[0].spans:
        span.start_time_unix_nano = span.end_time_unix_nano = now_ns
        for attribute in span.attributes:
            if attribute.key == KEYS["returned"]:
                attribute.value.int_value = 2**63 - 1
    again = ExportTraceServiceRequest.FromString(odd.SerializeToString().replace(b"odd", b"alt"))
    for number, span in enumerate(again.resource_spans[0].scope_spans[0].spans):
        span.span_id = bytes([number + 1]) * 8
    sidecar.send(odd, again)
    assert sidecar.value("kvtrail_spans_malformed_total") == 2
    assert len(sidecar.reader.tail(after=0)) == 10, "it is stored as it came"


def test_a_malformed_span_is_reported_once_for_each_kind(sidecar: Careful, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in (("a", "x"), ("b", "y"), ("c", "z")):
        odd = story(name)
        for span in odd.resource_spans[0].scope_spans[0].spans:
            for attribute in span.attributes:
                if attribute.key == KEYS["total"]:
                    attribute.value.string_value = value
        sidecar.send(odd)
    reported = [record.getMessage() for record in caplog.records if "no rule judges it" in record.getMessage()]
    assert [text.partition("(")[2].partition(")")[0] for text in reported] == [
        "kv.request.start", "kv.lookup", "kv.alloc", "kv.request",
    ]  # fmt: skip
    assert sidecar.value("kvtrail_spans_malformed_total") == 12


def test_the_sources_of_hits_as_a_number_and_a_block_size_as_text(
    sidecar: Careful, caplog: pytest.LogCaptureFixture
) -> None:
    """Both were fatal once: at first to their request, and then to the store."""
    caplog.set_level(logging.WARNING)
    number, text = (
        story("number", "L 749 c0 h256 -> 256\nA 256\nS 256+493"),
        story("text", "L 749 c0 h256 -> 256\nA 256"),
    )
    for span in number.resource_spans[0].scope_spans[0].spans:
        if span.name == semconv.Kind.ALLOC:
            span.attributes.add(key=KEYS["hit_sources"]).value.array_value.values.add(int_value=5)
    for attribute in text.resource_spans[0].resource.attributes:
        if attribute.key == semconv.BLOCK_SIZE.key:
            attribute.value.string_value = "16"
    for _ in range(2):
        sidecar.send(number, text, story("innocent"))
    assert "kvtrail.block.size is '16', but must be int; it is left out" in caplog.text
    sidecar.pipeline.close()
    sidecar.start()
    assert sidecar.requests()["innocent-0123abcd"]["verdict"] == "ok"
    assert sidecar.requests()["number-0123abcd"]["status"] != "admitted"
    assert ("engine-text", "text-0123abcd") in sidecar.pipeline.detector.accounts


@pytest.mark.parametrize("change", ["later", "longer", "numbered", "named"])
def test_what_no_recorder_writes_is_not_judged(sidecar: Careful, change: str) -> None:
    events = history(STORY)
    changes: dict[str, Callable[[Event], Event]] = {
        "later": lambda event: replace(event, end_ns=time.time_ns() + 2 * receiving.AHEAD_NS),
        "longer": lambda event: replace(event, start_ns=1),
        "numbered": lambda event: replace(event, sequence=2**50),
        "named": lambda event: replace(event, request="r" * 100_000),
    }
    sidecar.send(encoded([changes[change](events[1])]))
    assert sidecar.value("kvtrail_spans_malformed_total") == 1
    assert not sidecar.pipeline.detector.accounts
    assert len(sidecar.reader.tail(after=0)) == 1
    sidecar.pipeline.close()
    sidecar.start()
    assert not sidecar.pipeline.detector.accounts, "nor after a restart"


def test_a_store_with_a_damaged_chunk_is_opened(sidecar: Careful, caplog: pytest.LogCaptureFixture) -> None:
    sidecar.send(story("open", "L 749 c0 h256 -> 256"))
    sidecar.pipeline.close()
    db = sqlite3.connect(sidecar.folder / "s.db")
    db.execute("UPDATE chunks SET body = substr(body, 1, length(body) - 9)")
    db.commit()
    db.close()
    sidecar.start()
    assert "the spans from number 1 on are left out" in caplog.text
    assert sidecar.requests()["open-0123abcd"]["lookups"] == 1
    sidecar.send(story("good"))
    assert sidecar.requests()["good-0123abcd"]["verdict"] == "ok"


def test_two_connectors_that_record_one_step_make_one_lane(sidecar: Careful) -> None:
    """Both children of a MultiConnector record the step that computes the whole prompt."""
    text = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nS 256+493\nstore 256+493\nend"
    events = [
        replace(each, drafted=None, blocks_ids=None) if each.kind == semconv.Kind.SCHEDULE else each
        for each in history(text)
    ]  # type: ignore[call-arg]
    sidecar.send(encoded(events))
    (account,) = sidecar.pipeline.detector.accounts.values()
    assert lane_of(account, verdict="ok", findings=0).changes
    assert sidecar.error_count("rows") == 0


@pytest.mark.parametrize("number", [str(2**63), str(2**64), "9" * 300, "9" * 900])
def test_a_number_that_no_store_has_is_refused(sidecar: Careful, number: str) -> None:
    for name, unit in (("prompt", ""), ("duration", "h"), ("evicted", "")):
        answer = sidecar.client.get("/api/requests", params={"where": f"{name} >= {number}{unit}"})
        assert answer.status_code == 400, (name, answer.text)
    assert sidecar.error_count("api") in (None, 0)


@pytest.mark.parametrize("error", [OverflowError("too large"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no text")])
def test_what_a_reader_asks_for_is_no_error_of_kvtrails(
    sidecar: Careful, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(SqliteReader, "requests", refused)
    assert sidecar.client.get("/api/requests").status_code == 422
    assert sidecar.error_count("api") in (None, 0)
