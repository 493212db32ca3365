"""The connection to ClickHouse: its address, the official client, and errors in one sentence.

An address is `clickhouse://user:password@host:port/database?setting=value`, or `chdb:///folder?database=name` for
ClickHouse's engine within this process, which the tests use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kvtrail.tracer.store import StoreError, queries

DATABASE = "kvtrail"
"""The default database."""
_SCHEMES = ("clickhouse://", "clickhouses://", "chdb://")
_DEFAULTS = {
    "async_insert": "1",  # the server merges the small inserts of many tracers,
    "wait_for_async_insert": "1",  # and answers after they are on disk
    "autogenerate_session_id": "false",  # a session allows only one query at a time
    "connect_timeout": "5",
    "send_receive_timeout": "60",
}
"""Default settings of the server and its client."""


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """A parsed address. Its text form omits the password.

    Attributes:
        place: its scheme, host, port and database.
        database: its name.
        replicated: whether its tables are replicated: `?replicated=1`.
        client: connection parameters of the client.
        options: further settings of the client and of the server.
    """

    place: str
    database: str
    replicated: bool
    client: dict[str, str]
    options: dict[str, str]

    @staticmethod
    def is_one(text: str) -> bool:
        """Whether a text is an address rather than a path."""
        return text.startswith(_SCHEMES)

    @classmethod
    def of(cls, text: str) -> Address:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query))
        replicated = options.pop("replicated", "0") == "1"
        if parts.scheme == "chdb":
            database = options.pop("database", DATABASE)
            place = f"chdb://{parts.path}"
            return cls(place, database, replicated, {"dsn": place}, options)
        database = parts.path.strip("/") or DATABASE
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{database}"
        client = {"dsn": f"clickhouse://{parts.netloc}"}
        if parts.scheme == "clickhouses":
            client["interface"] = "https"
        return cls(place, database, replicated, client, {**_DEFAULTS, **options})

    def check_client(self) -> None:
        """Raises StoreError if the client is not installed."""
        try:
            import clickhouse_connect  # noqa: F401
        except ModuleNotFoundError as missing:
            raise StoreError("a store in ClickHouse needs its client: pip install 'kvtrail[clickhouse]'") from missing

    def __str__(self) -> str:
        return self.place

    __repr__ = __str__


class Database(queries.Database):
    """A client of one database. Any thread may use it."""

    sum_of, divided = "sum({})", "intDiv({}, {})"

    def __init__(self, address: Address, *, create: bool = False) -> None:
        """With `create`, the database is created if it does not exist.

        Raises:
            StoreError: the client is not installed, nothing answers at the address, or it refuses.
        """
        address.check_client()
        import clickhouse_connect

        # It logs each failure with a traceback; kvtrail reports a failure in one sentence, and retries.
        for name in ("clickhouse_connect", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.address = address
        self._failures = (clickhouse_connect.driver.exceptions.Error, OSError, ImportError)
        self._types: dict[str, dict[str, str]] = {}
        of: dict[str, Any] = {**self.address.client, "generic_args": self.address.options}
        with self._telling("open"):
            if create:
                with clickhouse_connect.get_client(**of) as client:
                    client.command(f"CREATE DATABASE IF NOT EXISTS `{self.address.database}`")
            self._client = clickhouse_connect.get_client(database=self.address.database, **of)

    def command(self, statement: str) -> None:
        """Run a statement without a result."""
        with self._telling("change"):
            self._client.command(statement)

    def table(self, name: str) -> str:
        return f"kvtrail_{name} FINAL"

    def ask(self, select: str, **values: Any) -> list[Any]:
        with self._telling("read"):
            return list(self._client.query(select, parameters=values).result_rows)

    def blocks(self, select: str, **values: Any) -> Iterator[list[Any]]:
        """Stream the same rows in lists."""
        with self._telling("read"), self._client.query_row_block_stream(select, parameters=values) as stream:
            for block in stream:
                yield list(block)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows; when this returns, the server holds them."""
        with self._telling("write to"):
            types = self._types_of(table)
            named = [types[name] for name in columns]
            self._client.insert(table, rows, column_names=columns, column_type_names=named)

    def close(self) -> None:
        self._client.close()

    def _types_of(self, table: str) -> dict[str, str]:
        """The types of a table's columns, queried once."""
        if table not in self._types:
            rows = self._client.query(f"DESCRIBE TABLE {table}").result_rows
            self._types[table] = {name: type_ for name, type_, *_ in rows}
        return self._types[table]

    @contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise StoreError(f"cannot {doing} the store {self.address}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The operating system's error, if there is one; otherwise the error of the client or the server."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:300]
