"""The sidecar's log: as text or as JSON, and never flooded.

A limited number of messages of each kind is logged per minute, and then the number of omitted ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pythonjsonlogger.json import JsonFormatter

from kvtrail.tracer.events.bounded import BoundedDict

MAX_LOGGED = 10
"""Maximum number of messages of a kind in a minute. Messages with the same format string are of one kind."""
MINUTE_S = 60.0
MAX_KINDS = 1_000


def set_up(form: str) -> None:
    """Configure all loggers of this process to write to standard error, as `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        )
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    handler.addFilter(RateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class RateLimit:
    """A filter that passes a few messages of each kind per minute; the next message has the number of omitted ones."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: BoundedDict[tuple[str, int, str], tuple[float, int]] = BoundedDict(MAX_KINDS)
        """By kind: the start of its minute, and the number of messages since then."""
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Implements `logging.Filter`: whether a message is logged."""
        key, now_s = (record.name, record.levelno, str(record.msg)), self._clock()
        with self._lock:
            began_s, came = self._kinds.get(key, (now_s, 0))
            if now_s - began_s >= MINUTE_S:
                if came > MAX_LOGGED:
                    record.msg = f"{record.msg} ({came - MAX_LOGGED} more like it were left out)"
                began_s, came = now_s, 0
            self._kinds[key] = began_s, came + 1
        return came < MAX_LOGGED
