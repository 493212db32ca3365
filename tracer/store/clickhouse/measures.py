"""What requests are measured by, in ClickHouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Selection, measures
from kvtrail.tracer.store.clickhouse.connection import Database

_OF_CAUSE = "tokens['{}']"


def met(where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
    """A condition on a row of a request that its measures meet these, and the values by their parameters."""
    found = measures.conditions(where, _OF_CAUSE)
    select = "SELECT engine, request FROM kvtrail_request_measures FINAL"
    values = {f"value{number}": value for number, value in enumerate(found.values())}
    return f"(engine, request) IN ({select} WHERE {' AND '.join(found)})", values


class MeasureReader(measures.MeasureReader, Database):
    """The part of `Reader` that is about the measures of requests."""

    of_cause = _OF_CAUSE

    def tokens(self, which: Selection) -> dict[str, int]:
        selected, values = self.selected(which)
        return dict(self.ask(f"SELECT sumMap(tokens) {selected}", **values)[0][0])
