"""What a tracer reads again when it starts, or when an event comes of a request that it has forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.store.sqlite import log
from kvtrail.tracer.store.sqlite.database import Query, to_text

Whose = tuple[str, str]
"""A request, by engine and id."""
_FEW = 20
"""So many requests are looked for in the bytes of a chunk; for more, all of it is decoded."""


def open_requests(query: Query) -> set[Whose]:
    """The requests that have not ended, as far as their accounts know."""
    return set(query("SELECT engine, request FROM requests INDEXED BY requests_open", ["ended_ns IS NULL"]))


def unsettled(query: Query) -> set[Whose]:
    """The requests that have spans which their accounts are not up to date with."""
    ((settled,),) = query("SELECT settled FROM log_end")
    late = _decoded(payload for _, _, payload in log.parts(query, after=settled))
    return {(event.engine, event.request) for events in late for event in events if event.request is not None}


def events_of(query: Query, requests: Collection[Whose]) -> Iterator[list[Event]]:
    """The events of these requests in the order of their arrival, some at a time."""
    # Before the spans of a request come those that the accounts were up to date with when its row was made.
    begins = {
        (engine, request): number
        for engine, request, number in query(
            "SELECT engine, request, after_span FROM json_each(?) AS r CROSS JOIN requests"
            " ON request = r.value ->> 1 AND engine = r.value ->> 0",
            (),
            [to_text(list(requests))],
        )
    }
    by_stretch: dict[int, list[bytes]] = {}
    for whose in requests:
        by_stretch.setdefault(log.stretch(begins.get(whose, 0)), []).append(log.request_key(*whose))
    numbers: set[int] = set()
    for first, keys in by_stretch.items():
        numbers.update(log.numbers_with(query, keys, from_stretch=first))
    payloads = (payload for number in sorted(numbers) for _, _, payload in log.parts(query, after=number - 1, limit=1))
    if len(requests) <= _FEW:
        marks = [request.encode(errors="replace") for _, request in requests]
        payloads = (protobuf.cut(payload, marks) for payload in payloads)
    for events in _decoded(payloads):
        yield [event for event in events if (event.engine, event.request) in requests]


def _decoded(payloads: Iterable[bytes]) -> Iterator[list[Event]]:
    decoder = ProtobufDecoder()
    return (decoder.decoded(payload).events for payload in payloads)
