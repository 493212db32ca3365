"""Measures of requests in ClickHouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Selection, measures
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.queries import all_of

_OF_CAUSE = "tokens['{}']"


def met(where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
    """The SQL condition that a request's measures meet these conditions, and the values of its parameters."""
    conditions, values = all_of(measures.conditions(where, _OF_CAUSE))
    return f"(engine, request) IN (SELECT engine, request FROM kvtrail_request_measures FINAL {conditions})", values


class MeasureReader(measures.MeasureReader, Database):
    """The part of `Reader` for the measures of requests."""

    of_cause = _OF_CAUSE

    def tokens(self, which: Selection) -> dict[str, int]:
        selected, values = self.selected(which)
        return dict(self.ask(f"SELECT sumMap(tokens) {selected}", **values)[0][0])
