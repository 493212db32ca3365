"""Queries for spans in the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode, protobuf
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.store.request_rows import StoredRequest
from kvtrail.tracer.store.sqlite import log
from kvtrail.tracer.store.sqlite.database import Database

_CHUNKS = 50
"""Maximum number of chunks that are searched for named spans: each takes some milliseconds."""


class SpanReader(Database):
    """The part of `Reader` for spans."""

    def spans_of(self, account: StoredRequest, *, limit: int = 20_000) -> list[Span]:
        about = account.account()
        engine, request, external, trace_id = (about[name] for name in ("engine", "request", "external", "trace_id"))
        keys = [log.request_key(engine, request), log.trace_key(trace_id), log.name_key(external)]
        marks = [text.encode(errors="replace") for text in (request, external) if text]
        marks += [bytes.fromhex(trace_id)] if trace_id else []
        decoder = ProtobufDecoder()
        found: dict[tuple[str, str], Span] = {}
        for payload in log.payloads_with(self.query, keys):
            for span in decoder.spans(protobuf.cut(payload, marks)):
                of_request = span.attributes.get(semconv.REQUEST_ID.key) if decode.is_ours(span) else None
                if of_request is not None:
                    belongs = of_request == request and span.resource.get(semconv.ENGINE_ID.key) == engine
                else:
                    belongs = trace_id == span.trace_id or external == span.attributes.get(semconv.CALLERS_ID.key)
                if belongs:
                    found.setdefault((span.trace_id, span.span_id), span)
            if len(found) >= limit:
                break
        return sorted(found.values(), key=lambda span: span.end_ns)[-limit:]

    def spans_named(self, named: Collection[tuple[str, str]]) -> list[Span]:
        decoder, traces = ProtobufDecoder(), {trace for trace, _ in named}
        payloads = log.payloads_with(self.query, [*map(log.trace_key, traces)])
        marks = [*map(bytes.fromhex, traces)]
        found = (span for payload in islice(payloads, _CHUNKS) for span in decoder.spans(protobuf.cut(payload, marks)))
        return [span for span in found if decode.is_ours(span) and (span.trace_id, span.span_id) in named]

    def spans(self, *, since_ns: int, until_ns: int) -> Iterator[list[Span]]:
        decoder = ProtobufDecoder()
        for _, _, payload in log.parts(self.query, after=0, since_ns=since_ns):
            ours = (span for span in decoder.spans(payload) if decode.is_ours(span))
            yield [span for span in ours if since_ns <= span.end_ns < until_ns]

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        decoder = ProtobufDecoder()
        found: list[tuple[int, Span]] = []
        for first, _, payload in log.parts(self.query, after=after):
            for number, span in decoder.numbered(payload, first=first):
                if len(found) >= limit and number > found[-1][0]:
                    return found
                if number > after:
                    found.append((number, span))
        return found
