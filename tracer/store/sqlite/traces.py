"""Finds the requests of a trace in the log."""

from __future__ import annotations

import re

from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.store.queries import to_text
from kvtrail.tracer.store.sqlite import log
from kvtrail.tracer.store.sqlite.database import Query

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def requests_in(query: Query, trace_id: str) -> list[int]:
    """The numbers of the requests in this trace; none if it is not a trace id."""
    if not _TRACE_ID.fullmatch(trace_id):
        return []
    decoder = ProtobufDecoder()
    found: set[tuple[str, str]] = set()
    for payload in log.payloads_with(query, [log.trace_key(trace_id)]):
        events = decoder.decoded(protobuf.cut(payload, [bytes.fromhex(trace_id)])).events
        found.update((event.engine, event.request) for event in events if event.request is not None)
    rows = query(
        "SELECT number FROM json_each(?) AS r CROSS JOIN requests ON request = r.value ->> 1 AND engine = r.value ->> 0",
        ["trace_id = ?"],
        [to_text(sorted(found)), trace_id],
    )
    return [number for (number,) in rows]
