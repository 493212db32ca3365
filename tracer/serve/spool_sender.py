"""Sends stored batches to ClickHouse, in order, and waits while ClickHouse is unavailable.

In: batches from the spool of the tracer's own store, where they survive the process. Out: to a writer, which is opened
on demand. Nothing waits for the sender: a tracer receives, judges and acknowledges whether or not ClickHouse is
available.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.store import Batch, StoreError
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.sqlite.spool import Spool

logger = logging.getLogger("kvtrail")

EVERY_S = 1.0
"""Seconds between two sends. Batches are sent together, since ClickHouse prefers few, large inserts."""
PARCEL_BYTES = 2**19
"""Compressed bytes of batches that are sent together: about 10,000 spans."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Seconds to wait after a failure; the wait doubles up to the longest."""


class SpoolSender:
    """A thread that empties a spool.

    Attributes:
        trouble: why the last send failed; None after a success.
    """

    def __init__(
        self, spool: Spool, open_writer: Callable[[], ClickHouseWriter], remote_handoffs: RemoteHandoffs
    ) -> None:
        """`open_writer` raises StoreError while ClickHouse is unavailable; `remote_handoffs` fetches the other sides of
        this tracer's hand-offs."""
        self.spool = spool
        self.trouble: str | None = None
        self._open_writer, self._remote_handoffs = open_writer, remote_handoffs
        self._writer: ClickHouseWriter | None = None
        self._sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ship", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within_s: float) -> None:
        """Send waiting batches for at most `within_s` seconds; the rest is sent after the next start."""
        self._stopping.set()
        self._thread.join(within_s)

    def state(self) -> dict[str, Any]:
        """The status and the waiting batches, as JSON-ready data."""
        return {"status": self.trouble or "ok", **asdict(self.spool.waiting())}

    def send(self) -> None:
        """Send all batches that wait now, and fetch the other sides of hand-offs.

        Raises:
            StoreError: sending failed; the rest is sent the next time.
        """
        last = self.spool.last_number()
        while self._sent < last and (parcel := self.spool.read(after=self._sent, most_bytes=PARCEL_BYTES)):
            self._send(parcel)
        self._remote_handoffs.ask(self._opened())

    def _send(self, parcel: Sequence[tuple[int, Batch]]) -> None:
        unfit = self._opened().ship(parcel)
        if unfit:
            logger.warning("%s parts do not fit into ClickHouse and were left out; the first: %s", len(unfit), unfit[0])
        self._sent = parcel[-1][0]
        self.spool.confirm(self._sent)
        self._remote_handoffs.want(row for _, batch in parcel for row in batch.handoffs)

    def _opened(self) -> ClickHouseWriter:
        if self._writer is None:
            self._writer = self._open_writer()
        return self._writer

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            is_last = self._stopping.is_set()
            try:
                self.send()
                if self.trouble is not None:
                    logger.info("ClickHouse is available again, and all waiting batches were sent")
                self.trouble = None
                wait_s, pause_s = FIRST_WAIT_S, EVERY_S
            except Exception as error:
                if self.trouble is None:
                    known = isinstance(error, StoreError)
                    logger.error("%s; new data is stored and sent later", error, exc_info=not known)
                self.trouble = str(error)
                pause_s = random.uniform(wait_s / 2, wait_s)  # tracers that failed together retry at different times
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            if is_last:
                break
            self._stopping.wait(pause_s)
        if self._writer is not None:
            self._writer.close()
