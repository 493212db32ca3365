"""Internal errors of kvtrail, caught at their origin: each is counted by `where`, and logged once for each place in the code.

An error affects only the item that it happened in: the judgement of a span, the row of a request, a batch to ClickHouse.
Other data in the same request is still accepted.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import Counter

logger = logging.getLogger("kvtrail")

MAX_LOGGED = 1_000
"""Maximum number of remembered places in the code; each is logged once."""


class Where(StrEnum):
    """The part of the sidecar in which an error happened, outside of the detector."""

    DECODE = "decode"
    DETECTOR = "detector"
    PHASES = "phases"
    SAVINGS = "savings"
    ROWS = "rows"
    METRICS = "metrics"
    STORE = "store"
    RECALL = "recall"
    FINDING_LOG = "finding_log"
    TIDY = "tidy"
    INGEST = "ingest"
    API = "api"


class InternalErrors:
    """Counts errors, and logs new ones."""

    def __init__(self, counter: Counter) -> None:
        """`counter` has the label `where`; its series begin at 0, so that an alert sees the first error."""
        self._counter = counter
        for where in Where:
            counter.labels(where)
        self._logged: set[tuple[str, int, str]] = set()

    @contextmanager
    def caught(self, where: Where, about: str = "") -> Iterator[None]:
        """Catch and count exceptions raised in the block."""
        try:
            yield
        except Exception as error:
            self.count(where, error, about)

    def count(self, where: str, error: Exception, about: str = "") -> None:
        """Count an error; `where` is one of `Where`, a rule, or a part of the detector, and `about` names its effect."""
        self._counter.labels(where).inc()
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        place = (file, line, type(error).__name__)
        if place not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(place)
            logger.error(
                "an error in kvtrail itself (%s)%s; further errors like it are only counted",
                where,
                about and f", {about}",
                exc_info=error,
            )
