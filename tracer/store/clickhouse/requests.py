"""Requests in ClickHouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import requests
from kvtrail.tracer.store.clickhouse import measures
from kvtrail.tracer.store.clickhouse.connection import Database


class RequestReader(requests.RequestReader, Database):
    """The part of `Reader` for requests."""

    find, stored = "position", "engine, status, outcome, account"

    def unpacked(self, body: Any) -> bytes:
        return str(body).encode()

    def met(self, where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
        return measures.met(where)

    def of_trace(self, trace_id: str) -> dict[str, Any]:
        return {"(trace_id = {trace:String} AND trace_id != '')": trace_id}
