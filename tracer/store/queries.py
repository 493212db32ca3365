"""Queries that both databases share.

A shared query is SQL that SQLite and ClickHouse interpret alike. Parameters have ClickHouse's syntax: `{name:Type}`, or
`{name:Array(Type)}` for a list. `Database` has the parts that differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

ASKED_TOGETHER = 500
"""Maximum number of names in one query."""
_encode = msgspec.json.Encoder().encode
from_text = msgspec.json.Decoder().decode
"""The data of a JSON text. Raises ValueError if it is not JSON."""


def to_text(data: Any) -> str:
    """JSON-ready data as text."""
    return _encode(data).decode()


def an_object(text: str) -> dict[str, Any]:
    """The data of a JSON text that is an object. Raises ValueError if it is not one."""
    if not isinstance(data := from_text(text), dict):
        raise ValueError("the JSON text is not an object")
    return data


class Database(ABC):
    """A database, as shared queries see it.

    Attributes:
        sum_of, divided: the SQL for a sum of integers, and for a whole quotient, as format strings.
    """

    sum_of: str
    divided: str

    @abstractmethod
    def table(self, name: str) -> str:
        """The name of a table in a FROM clause."""

    @abstractmethod
    def ask(self, select: str, **values: Any) -> list[Any]:
        """The rows of a SELECT with these values for its parameters."""

    def ask_in_parts(self, select: str, names: Iterable[str], **values: Any) -> Iterator[Any]:
        """The rows of a SELECT with the list parameter `names`, which may be long: one query for each part of it."""
        rest = iter(names)
        while part := [*islice(rest, ASKED_TOGETHER)]:
            yield from self.ask(select, names=part, **values)


def all_of(conditions: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A WHERE clause with the conditions that have a value, and the values by parameter name. A condition with an empty text
    or None is omitted; a collection is passed as a list."""
    given = {condition: value for condition, value in conditions.items() if value not in ("", None)}
    names = (condition.partition("{")[2].partition(":")[0] for condition in given)
    values = (
        [*value] if isinstance(value, Iterable) and not isinstance(value, str) else value for value in given.values()
    )
    return f"WHERE {' AND '.join(given) or '1 = 1'}", dict(zip(names, values, strict=True))
