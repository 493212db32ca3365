"""The reading side of the store in ClickHouse, and what it knows of engines."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.model import engines
from kvtrail.tracer.model.engines import DESCRIPTION
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse import (
    findings,
    handoffs,
    lanes,
    launches,
    markers,
    measures,
    requests,
    savings,
    schema,
    spans,
    waste,
)
from kvtrail.tracer.store.clickhouse.connection import Address, Connection
from kvtrail.tracer.store.clickhouse.database import Database


class EngineReader(Database):
    """The part of `Reader` that is about engines."""

    def names(self) -> dict[str, str]:
        return engines.names(self._descriptions())

    def engines(self) -> dict[str, dict[str, Any]]:
        open_requests = self.query(
            "SELECT engine, count() FROM kvtrail_requests FINAL WHERE ended_ns IS NULL GROUP BY engine"
        )
        return engines.listed(self._descriptions(), dict(open_requests))

    def ping(self) -> None:
        """Raises StoreError if nothing can be read now."""
        self.query("SELECT 1")

    def heard_since(self, since_ns: int) -> list[str]:
        """The engines with recent activity since then."""
        recent = "SELECT DISTINCT engine FROM kvtrail_activity WHERE at_s >= {since_s:Int64}"
        return [engine for (engine,) in self.query(recent, since_s=since_ns // 10**9)]

    def _descriptions(self) -> dict[str, dict[str, str]]:
        rows = self.query(f"SELECT engine, {', '.join(DESCRIPTION)} FROM kvtrail_engines FINAL ORDER BY first_ns")
        return {engine: dict(zip(DESCRIPTION, about, strict=True)) for engine, *about in rows}


class ClickHouseReader(
    spans.SpanReader,
    requests.RequestReader,
    findings.FindingReader,
    lanes.LaneReader,
    measures.MeasureReader,
    savings.SavingsReader,
    waste.WasteReader,
    launches.LaunchReader,
    markers.MarkerReader,
    handoffs.HandoffReader,
    EngineReader,
):
    """The reading side: a `Reader` over all tracers. Each part of it is in the file of its table."""

    def __init__(self, address: Address, *, is_first: bool = False) -> None:
        """With `is_first`, tables that no tracer has made yet are made, and are empty.

        Raises:
            StoreError: there is no such ClickHouse, or its tables are not those of this kvtrail.
        """
        try:
            super().__init__(Connection(address))
            version, _ = schema.stored(self.connection)
        except StoreError as error:
            if "UNKNOWN_DATABASE" not in str(error) and "UNKNOWN_TABLE" not in str(error):
                raise
            if not is_first:
                raise StoreError(
                    f"no tracer has stored anything in {address}: kvtrail serve --store {address}"
                ) from error
            super().__init__(Connection(address, create=True))
            version = 0
        if is_first and not version:
            schema.make(self.connection)
            version = schema.VERSION  # a tracer notes it, with how long it keeps what they have
        if version != schema.VERSION:
            raise StoreError(f"{address} has tables of schema {version}; this kvtrail reads {schema.VERSION}")
