"""Opens a store of either database for reading."""

from __future__ import annotations

from pathlib import Path

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite.opening import check_file
from kvtrail.tracer.store.sqlite.store import SqliteReader


def reader_of(store: Path | Address) -> Reader:
    """The reading side of the store at a path or an address.

    Raises:
        StoreError: there is none.
    """
    if isinstance(store, Address):
        return ClickHouseReader(store)
    if not store.is_file():
        raise StoreError(f"there is no store {store}")
    check_file(store)
    return SqliteReader(store)
