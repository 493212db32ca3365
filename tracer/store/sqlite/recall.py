"""Queries of a tracer that starts, or that receives an event of a forgotten request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.ordering import SeenNumbers
from kvtrail.tracer.store import MAX_RECEIPTS
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.queries import from_text, to_text
from kvtrail.tracer.store.sqlite import bodies, log
from kvtrail.tracer.store.sqlite.database import Database, Query

_handoff = msgspec.json.Decoder(HandoffRow).decode
_NEVER_NS = 2**63 - 1
_FEW = 20
"""Up to this many requests are searched in the bytes of a chunk; for more, the whole chunk is decoded."""


class RecallReader(Database):
    """Stored data that a start, or an event of a forgotten request, needs again. Usable from any thread."""

    def last_number(self) -> int:
        """The number of the last received span; 0 if there is none."""
        return int(self.query("SELECT number FROM log_end")[0][0])

    def holds(self, engine: str, request: str) -> bool:
        """Whether there is a row of this request."""
        return bool(self.query("SELECT 1 FROM requests WHERE request = ? AND engine = ?", [request, engine]))

    def ended_ns(self, number: int) -> int:
        """The end of the last span in the chunk with this span; 0 without a chunk."""
        rows = self.query("SELECT last_ns FROM chunks WHERE number <= ? ORDER BY number DESC LIMIT 1", [number])
        return int(rows[0][0]) if rows else 0

    def judged(self) -> int:
        """The number of the last judged span."""
        return int(self.query("SELECT coalesce(judged, number) FROM log_end")[0][0])

    def receipts(self) -> list[bytes]:
        """The digests of the last stored OTLP requests, in order."""
        rows = self.query(f"SELECT digest FROM receipts ORDER BY number DESC LIMIT {MAX_RECEIPTS}")
        return [digest for (digest,) in reversed(rows)]

    def seen(self) -> dict[str, tuple[str, int]]:
        """By recorder: the numbers of its stored events, in the format of `SeenNumbers.as_text`, and the arrival time of the
        last one; Unix nanoseconds."""
        return dict(readable(self.query("SELECT recorder, seen, last_ns FROM recorders"), _numbers, of="recorders"))

    def handoffs(self) -> list[HandoffRow]:
        """The events of the recent hand-offs, in the order in which they entered the ledger: from this sidecar's engines, and
        from other sidecars with the other side."""
        rows = self.query("SELECT body FROM handoffs ORDER BY number")
        return readable(rows, lambda row: _handoff(row[0]), of="handoffs")

    def open_requests(self) -> set[RequestKey]:
        """The requests that have not ended according to their accounts."""
        return set(self.query("SELECT engine, request FROM requests INDEXED BY requests_open WHERE ended_ns IS NULL"))

    def unsettled(self, *, until: int) -> set[RequestKey]:
        """The requests with judged spans, up to number `until`, that their accounts do not include."""
        ((settled,),) = self.query("SELECT settled FROM log_end")
        judged_parts = takewhile(lambda part: part[0] <= until, log.parts(self.query, after=settled))
        late = _decoded(payload for _, _, payload in judged_parts)
        return {(event.engine, event.request) for events in late for event in events if event.request is not None}

    def following(self, *, after: int) -> tuple[int, list[Event]] | None:
        """The events of the chunk after a span, and the number of its last span; None if there is none."""
        part = next(log.parts(self.query, after=after), None)
        if part is None:
            return None
        number, spans, payload = part
        return number + spans - 1, ProtobufDecoder().decoded(payload).events

    def begins_ns(self) -> int:
        """The start of the first span of a log from which spans were dropped; 0 for a complete log."""
        part = next(log.parts(self.query, after=0), None)
        if part is None or part[0] == 1:
            return 0 if part is not None or not self.last_number() else _NEVER_NS
        return min((span.start_ns for span in ProtobufDecoder().spans(part[2])), default=0)

    def beginning(self, *, after: int) -> int:
        """The number of the last span before the first chunk that is completely after this span."""
        first = "(SELECT min(number) - 1 FROM chunks WHERE number > ?)"
        return int(self.query(f"SELECT coalesce({first}, number) FROM log_end", [after])[0][0])

    def explained(self, requests: Collection[RequestKey]) -> dict[RequestKey, list[dict[str, Any]]]:
        """The admissions of these requests with final causes, from their rows."""
        rows = self.query(
            "SELECT engine, request, body FROM json_each(?) AS r CROSS JOIN requests"
            " ON request = r.value ->> 1 AND engine = r.value ->> 0",
            [to_text(list(requests))],
        )
        return dict(readable(rows, _explained, of="requests"))

    def events_of(self, requests: Collection[RequestKey], *, until: int) -> Iterator[list[Event]]:
        """The events of these requests up to span `until`, in the order of their arrival, in lists."""
        # A request's spans are after the spans that the accounts included when its row was made.
        begins = {
            (engine, request): number
            for engine, request, number in self.query(
                "SELECT engine, request, after_span FROM json_each(?) AS r CROSS JOIN requests"
                " ON request = r.value ->> 1 AND engine = r.value ->> 0",
                [to_text(list(requests))],
            )
        }
        by_stretch: dict[int, list[bytes]] = {}
        by_key: dict[bytes, list[RequestKey]] = {}
        for request in requests:
            key = log.request_key(*request)
            by_key.setdefault(key, []).append(request)
            by_stretch.setdefault(log.stretch(begins.get(request, 0)), []).append(key)
        places: dict[int, set[bytes]] = {}
        for first, keys in by_stretch.items():
            for number, found in log.places_of(self.query, keys, from_stretch=first).items():
                places.setdefault(number, set()).update(keys if found is None else found)
        there = {
            number: [request for key in places[number] for request in by_key[key]]
            for number in sorted(places)
            if number <= until
        }
        for events in _decoded(_payload(self.query, number, some) for number, some in there.items()):
            yield [event for event in events if (event.engine, event.request) in requests]


def _explained(row: Sequence[Any]) -> tuple[RequestKey, list[dict[str, Any]]]:
    engine, request, body = row
    return (engine, request), [entry for entry in from_text(bodies.unpacked(body))["causes"] if entry["final"]]


def _numbers(row: Sequence[Any]) -> tuple[str, tuple[str, int]]:
    recorder, text, last_ns = row
    SeenNumbers.from_text(text)
    return recorder, (text, last_ns)


def _payload(query: Query, number: int, requests: Collection[RequestKey]) -> bytes:
    """The spans of a chunk, or only those of a few requests."""
    payload = log.payload_at(query, number)
    if len(requests) > _FEW:
        return payload
    return protobuf.cut(payload, [request.encode(errors="replace") for _, request in requests])


def _decoded(payloads: Iterable[bytes]) -> Iterator[list[Event]]:
    decoder = ProtobufDecoder()
    return (decoder.decoded(payload).events for payload in payloads)
