"""Lossless conversion of spans to rows of `otel_traces`, and back.

In the exporter's schema all attribute values are texts. `Typed` names the attributes whose text is JSON: `s:` and the key
for an attribute of the span, `r:` for one of its resource, and `e`, the number of the event and `:` for one of an event. Rows
of other programs have no such names: all their values are strings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import LATEST_NS, Span
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.queries import from_text, to_text
from kvtrail.tracer.store.request_rows import StoredRequest

COLUMNS = (
    "Timestamp", "TraceId", "SpanId", "ParentSpanId", "SpanName", "SpanKind", "ServiceName", "ResourceAttributes",
    "ScopeName", "SpanAttributes", "Duration", "StatusCode", "StatusMessage", "Events.Timestamp", "Events.Name",
    "Events.Attributes", "Number", "Typed",
)  # fmt: skip
"""The columns that are written; all others stay empty."""
_SELECTED = (
    "Number, toUnixTimestamp64Nano(Timestamp), TraceId, SpanId, ParentSpanId, SpanName, ResourceAttributes, ScopeName,"
    " SpanAttributes, Duration, StatusCode, StatusMessage,"
    " arrayMap(at -> toUnixTimestamp64Nano(at), `Events.Timestamp`), `Events.Name`, `Events.Attributes`, Typed"
)
_END_NS = "toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)"
_NEAR = (
    "FROM otel_traces WHERE Timestamp BETWEEN fromUnixTimestamp64Nano({from_ns:Int64})"
    " AND fromUnixTimestamp64Nano({to_ns:Int64})"
)
_ITS_SPANS = (
    "Request = {request:String} AND Engine = {engine:String}",
    "TraceId = {trace_id:String} AND TraceId != '' AND Request = ''",
    "Named = {external:String} AND Named != '' AND Request = ''",
)
"""Conditions for the spans of a request, the foreign spans of its trace, and the foreign spans that name it."""
_NEAR_NS = 3600 * 10**9
"""Maximum time between a request's spans and its begin or end."""
_LONGEST_NS = 24 * _NEAR_NS
"""Maximum duration of a span."""


def row_of(span: Span, number: int) -> tuple[Any, ...]:
    """The values of `COLUMNS` for the span that arrived as this number."""
    typed: list[str] = []

    def as_text(attributes: Mapping[str, Any], prefix: str) -> dict[str, str]:
        typed.extend(prefix + key for key, value in attributes.items() if not isinstance(value, str))
        return {key: value if isinstance(value, str) else to_text(value) for key, value in attributes.items()}

    resource = as_text(span.resource, "r:")
    attributes = as_text(span.attributes, "s:")
    of_events = [as_text(event["attributes"], f"e{n}:") for n, event in enumerate(span.events)]
    return (
        span.start_ns, span.trace_id, span.span_id, span.parent_id, span.name,
        "Internal" if span.scope == semconv.SCOPE else "Unspecified",
        resource.get("service.name", ""), resource, span.scope, attributes, max(0, span.end_ns - span.start_ns),
        "Unset" if span.error is None else "Error", span.error or "",
        [min(event["time_ns"], LATEST_NS) for event in span.events], [event["name"] for event in span.events], of_events,
        number, typed,
    )  # fmt: skip


def span_of(row: Sequence[Any]) -> tuple[int, Span]:
    """The number and the span in a row of `_SELECTED`."""
    (
        number, start_ns, trace_id, span_id, parent_id, name, resource, scope, attributes, duration, status, message,
        times, names, of_events, typed,
    ) = row  # fmt: skip
    is_typed = frozenset(typed)

    def as_data(texts: Mapping[str, str], prefix: str) -> dict[str, Any]:
        return {key: from_text(text) if prefix + key in is_typed else text for key, text in texts.items()}

    events = [
        {"name": event, "time_ns": at_ns, "attributes": as_data(texts, f"e{n}:")}
        for n, (at_ns, event, texts) in enumerate(zip(times, names, of_events, strict=True))
    ]
    return number, Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=start_ns,
        end_ns=start_ns + duration,
        attributes=as_data(attributes, "s:"),
        resource=as_data(resource, "r:"),
        scope=scope,
        error=message if status == "Error" else None,
        events=events,
    )


class SpanReader(Database):
    """The part of `Reader` for spans."""

    def spans_of(self, account: StoredRequest, *, limit: int = 20_000) -> list[Span]:
        # A part for each index: with OR between them, none would be used.
        about = account.account()
        near = " UNION ALL ".join(
            f"SELECT {_SELECTED}, {_END_NS} AS end_ns {_NEAR} AND {those}" for those in _ITS_SPANS
        )
        rows = self.ask(
            f"SELECT * EXCEPT end_ns FROM ({near}) ORDER BY end_ns DESC, Number DESC"
            " LIMIT 1 BY TraceId, SpanId LIMIT {limit:UInt32}",
            from_ns=max(0, (about["started_ns"] or about["last_ns"]) - _NEAR_NS),
            to_ns=min(about["last_ns"] + _NEAR_NS, LATEST_NS),
            **{name: about[name] for name in ("request", "engine", "trace_id", "external")},
            limit=limit,
        )
        return [span_of(row)[1] for row in reversed(rows)]

    def spans_named(self, named: Collection[tuple[str, str]]) -> list[Span]:
        rows = self.ask(
            f"SELECT {_SELECTED} FROM otel_traces WHERE TraceId IN {{traces:Array(String)}}"
            " AND SpanId IN {spans:Array(String)} AND ScopeName = {ours:String} LIMIT 1 BY TraceId, SpanId",
            traces=[trace for trace, _ in named],
            spans=[span for _, span in named],
            ours=semconv.SCOPE,
        )
        found = [span_of(row)[1] for row in rows]
        return [span for span in found if (span.trace_id, span.span_id) in named]

    def spans(self, *, since_ns: int, until_ns: int) -> Iterator[list[Span]]:
        blocks = self.blocks(
            # Each span once, if the table is ours. Unlike FINAL, this is not an error if the Collector's exporter created it.
            f"""SELECT {_SELECTED} {_NEAR}
              AND {_END_NS} BETWEEN {{since_ns:Int64}} AND {{to_ns:Int64}} - 1
              AND ScopeName = {{ours:String}}
            ORDER BY {_END_NS}, Number
            SETTINGS final = 1""",
            ours=semconv.SCOPE,
            from_ns=max(0, since_ns - _LONGEST_NS),
            since_ns=since_ns,
            to_ns=until_ns,
        )
        for rows in blocks:
            yield [span_of(row)[1] for row in rows]

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        # Each row of a step has its own number, so the next query continues after the last row.
        rows = self.ask(
            f"SELECT {_SELECTED} FROM otel_traces WHERE Number > {{after:UInt64}}"
            " ORDER BY Number LIMIT 1 BY TraceId, SpanId LIMIT {limit:UInt32}",
            after=after,
            limit=limit,
        )
        return [span_of(row) for row in rows]
