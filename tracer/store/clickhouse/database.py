"""What the readers of the tables share."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from kvtrail.tracer.store.clickhouse.connection import Connection

to_text = msgspec.json.Encoder().encode
from_text = msgspec.json.Decoder().decode
"""The data of a JSON text. Raises ValueError if it is not JSON."""


ASKED_TOGETHER = 500
"""Requests that one query names."""
NAMED = (
    "request IN {requests:Array(String)}"
    " AND (request, engine) IN arrayZip({requests:Array(String)}, {engines:Array(String)})"
)
"""The condition by which it names them."""


class Database:
    """The store for readers: any thread may use it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def query(self, select: str, **values: Any) -> list[Any]:
        """The rows of a SELECT, which has `{name:Type}` for each value."""
        return self.connection.query(select, **values)

    def clock_ns(self) -> int:
        return time.time_ns()


def all_of(conditions: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A WHERE with those conditions that have a value, and the values by the name of their parameter. A condition that is
    empty or None is left out."""
    given = {condition: value for condition, value in conditions.items() if value not in ("", None)}
    text = " AND ".join(given) or "1"
    names = [condition.partition("{")[2].partition(":")[0] for condition in given]
    return f"WHERE {text}", dict(zip(names, given.values(), strict=True))
