"""Requests and their measures in ClickHouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Selection, measures, requests
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.queries import all_of


class RequestReader(measures.MeasureReader, requests.RequestReader, Database):
    """The part of `Reader` for requests and their measures."""

    find, stored, of_cause = "position", "engine, status, outcome, account", "tokens['{}']"

    def unpacked(self, body: Any) -> bytes:
        return str(body).encode()

    def met(self, where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
        conditions, values = all_of(measures.conditions(where, self.of_cause))
        return f"(engine, request) IN (SELECT engine, request FROM kvtrail_request_measures FINAL {conditions})", values

    def of_trace(self, trace_id: str) -> dict[str, Any]:
        return {"(trace_id = {trace:String} AND trace_id != '')": trace_id}

    def tokens(self, which: Selection) -> dict[str, int]:
        selected, values = self.selected(which)
        return dict(self.ask(f"SELECT sumMap(tokens) {selected}", **values)[0][0])
