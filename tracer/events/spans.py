"""A span as data, independent of its OTLP encoding and of its recorder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.events.structs import Struct

LATEST_NS = 2**63 - 2
"""Later times are cut to this one: it fits into a store's 64 bits, and no event may have it."""


class Span(Struct, gc=False):
    """One finished span. Ids are lower-case hex; times are Unix nanoseconds.

    `resource` is shared between the spans of a batch; treat it as read-only.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: Mapping[str, Any]
    scope: str = ""
    error: str | None = None
    events: list[dict[str, Any]] = []  # noqa: RUF012  # a struct has a list of its own
