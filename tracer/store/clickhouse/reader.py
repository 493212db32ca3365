"""The reading side of the store in ClickHouse."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse import handoffs, lanes, schema, spans
from kvtrail.tracer.store.clickhouse.connection import Address
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.reader import Reader


class ClickHouseReader(spans.SpanReader, lanes.LaneReader, Reader):
    """The reading side over the data of all tracers."""

    pairs = "groupArray((measure, total))"

    def __init__(self, address: Address, *, is_first: bool = False) -> None:
        """With `is_first`, missing tables are created empty.

        Raises:
            StoreError: there is no such ClickHouse, or its tables are not those of this kvtrail.
        """
        try:
            super().__init__(address)
            version, _ = schema.stored(self)
        except StoreError as error:
            if "UNKNOWN_DATABASE" not in str(error) and "UNKNOWN_TABLE" not in str(error):
                raise
            if not is_first:
                raise StoreError(
                    f"no tracer has stored anything in {address}: kvtrail serve --store {address}"
                ) from error
            super().__init__(address, create=True)
            version = 0
        if is_first and not version:
            schema.make(self)
            version = schema.VERSION  # a tracer writes it, with the retention time of the tables
        schema.check(self, version)

    def measures_of(self, pairs: Any) -> dict[str, int]:
        return dict(pairs)

    def ping(self) -> None:
        """Raises StoreError if the store cannot be read now."""
        self.ask("SELECT 1")

    def handoffs(self, keys: Collection[str]) -> list[HandoffRow]:
        """The events of the hand-offs with these names."""
        return handoffs.read(self, keys)
