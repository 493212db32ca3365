"""What the store finds by parts of ids and by filters is what looking at every request would find."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import encoded

from kvtrail.connector.recording.contexts import root_ids
from kvtrail.tracer.events.events import RequestStart
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.store import Batch, Chunk
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

STATUSES = ("queued", "running", "finished")
VERDICTS = ("ok", "drift", "unknown")


def trace_of(request: str) -> str:
    return root_ids("e", request)[:16].hex()


def starts(accounts: Sequence[dict[str, Any]]) -> Chunk:
    """By the spans of a request its trace is known."""
    events = [
        RequestStart(
            engine="e", recorder="e", sequence=number, role="scheduler", start_ns=each["started_ns"],
            end_ns=each["started_ns"], request=each["request"],
        )
        for number, each in enumerate(accounts)
    ]  # fmt: skip
    return Chunk(encoded(events), len(events), 1, traces={each["trace_id"] for each in accounts})


def account(request: str, external: str, started_ns: int, **changed: Any) -> dict[str, Any]:
    rows = Account("e", request, external=external, trace_id=trace_of(request)).as_dict()
    times = {"started_ns": started_ns, "last_ns": started_ns, "verdict": "ok", "findings": 0}
    return {**rows, **times, **changed}


@pytest.fixture(scope="module")
def held() -> list[dict[str, Any]]:
    """Requests in the order of their arrival, which is nearly that of their begin; some have an id of another form."""
    dice = random.Random(7)
    rows = []
    for number in range(3000):
        external = f"chat-{number}" if number % 3 else f'cmpl-{dice.getrandbits(64):016x}-0"é'
        request = f"{external}-{dice.getrandbits(32):08x}" if number % 7 else f"engine's own {number}"
        at_ns = 1000 * number + dice.randrange(50_000)
        changed = {"status": STATUSES[number % 50 % 3], "verdict": VERDICTS[number // 5 % 3]}
        rows.append(account(request, external, at_ns, **changed))
    return rows


@pytest.fixture(scope="module")
def reader(held: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteReader]:
    path = tmp_path_factory.mktemp("store") / "s.db"
    writer = SqliteWriter(path)
    for at in range(0, len(held), 100):
        some = held[at : at + 100]
        writer.write(Batch(starts(some), requests=list(map(row_of, some))))
        while at < len(held) // 2 and writer.fold(some=True):
            pass
    yield SqliteReader(path)
    writer.close()


def looked_at(held: list[dict[str, Any]], search: str, status: str, verdict: str, before_ns: int | None) -> list[str]:
    fitting = [
        each
        for each in held
        if (search in each["request"] or search in each["external"] or search == each["trace_id"])
        and status in ("", each["status"])
        and verdict in ("", each["verdict"])
        and (before_ns is None or each["started_ns"] < before_ns)
    ]
    return [each["request"] for each in sorted(fitting, key=lambda each: -each["started_ns"])]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_exactly_what_fits_is_found_the_latest_first(
    held: list[dict[str, Any]], reader: SqliteReader, data: st.DataObject
) -> None:
    some = data.draw(st.sampled_from(held))
    source = data.draw(st.sampled_from([some["request"], some["external"], some["trace_id"], "nobody", "chat-", ""]))
    begin = data.draw(st.integers(0, max(0, len(source) - 1)))
    search = source[begin : data.draw(st.integers(begin, len(source)))]
    status = data.draw(st.sampled_from(["", *STATUSES, "failed"]))
    verdict = data.draw(st.sampled_from(["", *VERDICTS]))
    before_ns = data.draw(st.sampled_from([None, some["started_ns"]]))
    limit = data.draw(st.sampled_from([1, 20, 5000]))
    engines = data.draw(st.sampled_from([None, ["e", "f"], ["f"]]))
    found = reader.requests(
        search=search, status=status, verdict=verdict, engines=engines, before_ns=before_ns, limit=limit
    )
    expected = looked_at(held, search, status, verdict, before_ns) if engines != ["f"] else []
    assert [each["request"] for each in found] == expected[:limit]


def test_pages_follow_each_other_without_a_gap(held: list[dict[str, Any]], reader: SqliteReader) -> None:
    seen: list[str] = []
    before_ns: int | None = None
    while page := reader.requests(search="chat-", limit=90, before_ns=before_ns):
        seen += [each["request"] for each in page]
        before_ns = page[-1]["started_ns"]
    expected = looked_at(held, "chat-", "", "", None)
    lost = set(expected) - set(seen)
    ties = {each["request"] for each in held if sum(x["started_ns"] == each["started_ns"] for x in held) > 1}
    assert lost <= ties, "only what began in the same nanosecond as the last of a page"


def test_an_id_that_is_a_search_expression_is_taken_as_it_is(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "s.db")
    odd = ['a" OR "b"', "NEAR(x y)", "ids:abc", "abc*", "日本語のリクエスト", "tab\tand\nline", "-not this"]
    writer.write(Batch(requests=[row_of(account(f"{text}-1", text, at)) for at, text in enumerate(odd)]))
    reader = SqliteReader(tmp_path / "s.db")
    for text in odd:
        assert [each["external"] for each in reader.requests(search=text)] == [text]
        assert [each["external"] for each in reader.requests(search=text[1:5])] == [text]
    assert reader.requests(search="ABC") == [], "case counts"
    for nobody in ('"', '""', '"" ""', "ab\0cd", "\0", "\0\0\0", "AND", "%", "_", chr(0x10FFFF)):
        assert not {each["external"] for each in reader.requests(search=nobody)} - set(odd[:1]), repr(nobody)


def test_a_name_that_comes_late_is_found_and_the_old_one_is_not(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "s.db")
    reader = SqliteReader(tmp_path / "s.db")
    writer.write(Batch(requests=[row_of(account("r-1", "before", 5))]))
    writer.fold(some=True)
    writer.write(Batch(requests=[row_of(account("r-1", "afterwards", 5))]))
    assert [each["request"] for each in reader.requests(search="afterw")] == ["r-1"]
    assert reader.requests(search="before") == []


def test_a_request_by_what_its_caller_saw(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "s.db")
    rows = [account(f"cmpl-1-{n}-abc", f"cmpl-1-{n}", 10 - n) for n in range(3)]
    others = [account("cmpl-10-0-abc", "cmpl-10-0", 99), account("cmpl-1.5", "cmpl-1.5", 98)]
    writer.write(Batch(starts(rows), requests=list(map(row_of, [*rows, *others]))))
    reader = SqliteReader(tmp_path / "s.db")
    latest = reader.request("cmpl-1")
    assert latest is not None
    assert latest["request"] == "cmpl-1-0-abc", "the latest by its begin, and no other id's"
    assert reader.request("cmpl-1", engine="another") is None
    assert reader.request("cmpl") is not None
    assert reader.request(trace_of("cmpl-1-2-abc")) == reader.request("cmpl-1-2")


def test_an_external_id_is_found_where_many_ids_begin_with_it(tmp_path: Path, held: list[dict[str, Any]]) -> None:
    writer = SqliteWriter(tmp_path / "k.db")
    writer.write(Batch(requests=list(map(row_of, [*held, account("chat-f00dcafe", "chat", 5_000)]))))
    writer.close()
    found = SqliteReader(tmp_path / "k.db").request("chat")
    assert found is not None
    assert found["request"] == "chat-f00dcafe"
