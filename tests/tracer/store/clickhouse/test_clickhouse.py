"""ClickHouse's side of the store: addresses, tables, and what goes in and comes out."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from history import START_NS, history
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from processes import free_port
from stores import FOR_EVER_HOURS, FleetTracer, clickhouse
from wire import as_payload

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.store import Batch, Chunk, StoreError
from kvtrail.tracer.store.clickhouse import schema, spans
from kvtrail.tracer.store.clickhouse.connection import Address, Database
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.request_rows import row_of

S = 10**9


def write(writer: ClickHouseWriter, batch: Batch) -> Sequence[Exception]:
    """Write a batch that was not written before."""
    return writer.ship([(time.time_ns(), batch)])


def opened() -> tuple[ClickHouseWriter, ClickHouseReader]:
    address = clickhouse()
    return ClickHouseWriter(address, tracer="t", retain_hours=FOR_EVER_HOURS), ClickHouseReader(address)


def account(request: str, external: str, at_ns: int, **changed: Any) -> dict[str, Any]:
    reported = Account("e", request, external=external).as_dict()
    times = {"started_ns": at_ns, "last_ns": at_ns, "verdict": "ok", "findings": 0, "unknown": None}
    return {**reported, **times, **changed}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("clickhouse://user:a-secret@host:8123/fleet?max_threads=2", "clickhouse://host:8123/fleet"),
        ("clickhouses://user:a-secret@host", "clickhouses://host/kvtrail"),
        ("chdb:///folder?database=other", "chdb:///folder"),
    ],
)
def test_an_address_shows_no_password(text: str, place: str) -> None:
    address = Address.of(text)
    assert str(address) == repr(address) == f"{address}" == place
    assert Address.is_one(text)


def test_what_an_address_says() -> None:
    address = Address.of("clickhouses://u:p%40ss@host:8443/fleet?replicated=1&insert_quorum=auto&async_insert=0")
    assert (address.database, address.replicated) == ("fleet", True)
    assert address.client == {"dsn": "clickhouse://u:p%40ss@host:8443", "interface": "https"}
    assert (address.options["insert_quorum"], address.options["async_insert"]) == ("auto", "0")
    assert address.options["wait_for_async_insert"] == "1"
    assert not Address.is_one("/var/lib/clickhouse.db")


def test_a_client_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    with pytest.raises(StoreError, match=r"pip install 'kvtrail\[clickhouse\]'"):
        Database(clickhouse())


def test_where_nothing_answers_the_reason_is_the_systems() -> None:
    """The client's own text is 300 characters about pools and retries."""
    with pytest.raises(StoreError) as refused:
        Database(Address.of(f"clickhouse://127.0.0.1:{free_port()}/traces"))
    assert re.fullmatch(
        r"cannot open the store clickhouse://127\.0\.0\.1:\d+/traces: Connection refused", str(refused.value)
    )


def test_tables_of_another_kvtrail_are_refused() -> None:
    address = clickhouse()
    ClickHouseWriter(address, tracer="t", retain_hours=FOR_EVER_HOURS).close()
    connection = Database(address)
    connection.insert("kvtrail_schema", ("version", "retain_hours", "written"), [(99, 72.0, time.time_ns())])
    with pytest.raises(StoreError, match="schema 99"):
        ClickHouseWriter(address, tracer="t", retain_hours=72)
    with pytest.raises(StoreError, match="schema 99"):
        ClickHouseReader(address)


def test_replicated_tables_are_asked_for_by_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is at hand: the statements are all that can be tested."""
    said: list[str] = []
    monkeypatch.setattr(Database, "command", lambda self, statement: said.append(statement))
    monkeypatch.setattr(schema, "stored", lambda connection: (0, 0.0))
    monkeypatch.setattr(Database, "insert", lambda *arguments: None)
    connection = Database(Address.of(str(clickhouse()) + "?replicated=1"), create=True)
    schema.prepare(connection, retain_hours=72, now_ns=1)
    engines = [line for statement in said for line in statement.splitlines() if "ENGINE = " in line]
    made = [statement for statement in said if statement.startswith("CREATE TABLE")]
    assert len(engines) == len(made) > 10
    assert all("ENGINE = Replicated" in line for line in engines)


def test_the_table_of_the_collectors_exporter_is_kept_and_read(tmp_path: Path) -> None:
    """Made by it, with a row of it; its spans are read, and ours come beside them."""
    address = clickhouse()
    connection = Database(address, create=True)
    theirs = (
        schema.SPANS.format(engine="").replace("ReplacingMergeTree", "MergeTree").replace(", TraceId, SpanId)", ")")
    )
    connection.command(theirs)
    columns = spans.COLUMNS[: spans.COLUMNS.index("Number")]
    connection.insert(
        "otel_traces",
        columns,
        [(START_NS, "a" * 32, "b" * 16, "", "GET /", "Server", "gateway", {"service.name": "gateway"}, "http", {"n": "5"},
          7, "Error", "no", [START_NS], ["x"], [{"k": "v"}])],
    )  # fmt: skip
    tracer = FleetTracer(tmp_path, address)
    tracer.hear(history("L 749 c0 h256 -> 256\nA 256\nend"))
    tracer.send()
    first, *ours = _all(tracer.fleet)
    assert ours
    assert first == Span(
        trace_id="a" * 32, span_id="b" * 16, parent_id="", name="GET /", start_ns=START_NS, end_ns=START_NS + 7,
        attributes={"n": "5"}, resource={"service.name": "gateway"}, scope="http", error="no",
        events=[{"name": "x", "time_ns": START_NS, "attributes": {"k": "v"}}],
    )  # fmt: skip
    engine = connection.ask(
        "SELECT engine FROM system.tables WHERE database = currentDatabase() AND name = 'otel_traces'"
    )
    assert engine == [("MergeTree",)]
    times = "SELECT count() FROM otel_traces_trace_id_ts"
    assert connection.ask(times)[0][0] > 0


def _all(reader: ClickHouseReader) -> list[Span]:
    rows = reader.ask(f"SELECT {spans._SELECTED} FROM otel_traces ORDER BY Number")
    return [spans.span_of(row)[1] for row in rows]


def test_rows_leave_when_they_are_older_than_retain_hours() -> None:
    address = clickhouse()
    writer = ClickHouseWriter(address, tracer="t", retain_hours=FOR_EVER_HOURS)
    now_ns = time.time_ns()
    write(
        writer,
        Batch(
            requests=list(
                map(row_of, [account("old-1", "old", now_ns - 100 * 3600 * S), account("new-1", "new", now_ns)])
            )
        ),
    )
    reader = ClickHouseReader(address)
    assert len(reader.requests()) == 2
    ClickHouseWriter(address, tracer="t", retain_hours=72)
    assert schema.stored(reader) == (schema.VERSION, 72.0)
    reader.command("OPTIMIZE TABLE kvtrail_requests FINAL")
    assert [each["external"] for each in reader.requests()] == ["new"]


def test_an_id_that_is_a_search_expression_is_taken_as_it_is() -> None:
    writer, reader = opened()
    odd = [
        'a" OR "b"',
        "it's",
        "ids:abc",
        "abc*",
        "日本語のリクエスト",
        "tab\tand\nline",
        "-not this",
        "back\\slash",
        "{x:String}",
    ]
    write(
        writer,
        Batch(requests=list(map(row_of, [account(f"{text}-1", text, at) for at, text in enumerate(odd, START_NS)]))),
    )
    for text in odd:
        assert [each["external"] for each in reader.requests(search=text)] == [text]
        assert [each["external"] for each in reader.requests(search=text[1:5])] == [text]
        found = reader.request(text)
        assert found is not None
        assert found["external"] == text
    assert reader.requests(search="ABC") == [], "case counts"
    for nobody in ("'; DROP TABLE otel_traces; --", "%", "ab\0cd", chr(0x10FFFF)):
        assert reader.requests(search=nobody) == [], repr(nobody)


def test_a_request_by_what_its_caller_saw() -> None:
    writer, reader = opened()
    rows = [account(f"cmpl-1-{n}-abc", f"cmpl-1-{n}", START_NS + 10 - n) for n in range(3)]
    others = [account("cmpl-10-0-abc", "cmpl-10-0", START_NS + 99), account("cmpl-1.5", "cmpl-1.5", START_NS + 98)]
    write(writer, Batch(requests=list(map(row_of, [*rows, *others]))))
    latest = reader.request("cmpl-1")
    assert latest is not None
    assert latest["request"] == "cmpl-1-0-abc", "the latest by its begin, and no other id's"
    assert reader.request("cmpl-1", engine="another") is None


def test_what_does_not_fit_is_left_out_and_said() -> None:
    writer, reader = opened()
    reported = [
        account("a-1", "a", START_NS),
        account("b-1", "b", START_NS, lookups=2**63),
    ]
    assert len(write(writer, Batch(requests=list(map(row_of, reported))))) == 1
    assert [each["request"] for each in reader.requests()] == ["a-1"]
    huge = account("d-1", "d", START_NS, loaded=2**70)
    assert write(writer, Batch(requests=[row_of(huge)])) == []
    assert reader.totals()["loaded"] == 2**62


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_ATTRIBUTES = st.dictionaries(_TEXT, _VALUE, max_size=5)
_SPAN = st.builds(
    Span,
    trace_id=st.just("a" * 32),
    span_id=st.integers(1, 2**63).map(lambda n: f"{n:016x}"),
    parent_id=st.sampled_from(["", "c" * 16]),
    name=_TEXT,
    start_ns=st.integers(START_NS, START_NS + 10**15),
    end_ns=st.integers(START_NS + 10**15, START_NS + 10**17),
    attributes=_ATTRIBUTES,
    resource=_ATTRIBUTES,
    scope=_TEXT,
    error=st.none() | _TEXT.filter(bool),
    events=st.lists(
        st.fixed_dictionaries({"name": _TEXT, "time_ns": st.integers(0, 4 * 10**18), "attributes": _ATTRIBUTES}),
        max_size=2,
    ),
)


_TWO_EVENTS = [
    {"name": "a", "time_ns": 1, "attributes": {"same": 7}},
    {"name": "b", "time_ns": 2, "attributes": {"same": "text"}},
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@example(span=Span("a" * 32, "b" * 16, "", "", START_NS, START_NS + 10**15, {}, {}, events=_TWO_EVENTS))
@given(span=_SPAN)
def test_a_span_comes_out_as_it_went_in(span: Span) -> None:
    row = dict(zip(spans.COLUMNS, spans.row_of(span, 5), strict=True))
    assert all(isinstance(text, str) for text in row["SpanAttributes"].values())
    writer, reader = _one()
    ((before,),) = reader.ask("SELECT max(Number) FROM otel_traces")
    write(writer, Batch(chunk=Chunk(as_payload([span]), 1, span.end_ns)))
    ((number, back),) = reader.tail(after=before)
    assert number > before
    assert back == span


_kept: list[tuple[ClickHouseWriter, ClickHouseReader]] = []


def _one() -> tuple[ClickHouseWriter, ClickHouseReader]:
    if not _kept:
        _kept.append(opened())
    return _kept[0]
