"""The sidecar's log: as text or as JSON, and never flooded.

A limited number of messages of each kind is logged a minute, and then how many were left out.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum

from pythonjsonlogger.json import JsonFormatter

MAX_LOGGED = 10
"""Messages of a kind in a minute: those of the same words, whatever is filled in."""
MINUTE_S = 60.0
_LEFT_OUT = "%d more messages were left out in %.0f s: %s"


class Format(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


def set_up(form: Format) -> None:
    """Let all loggers of this process write to its standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        )
        if form is Format.JSON
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    handler.addFilter(RateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@dataclass(slots=True)
class _Kind:
    """What was logged with the same words since the minute began."""

    logged: int = 0
    left_out: int = 0


class RateLimit:
    """A filter that lets pass a few messages of each kind in a minute."""

    def __init__(self, *, minute_s: float = MINUTE_S) -> None:
        self._minute_s = minute_s
        self._kinds: dict[tuple[str, int, str], _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Of `logging`: whether a message is logged."""
        if record.msg == _LEFT_OUT:
            return True
        key = (record.name, record.levelno, str(record.msg))
        with self._lock:
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind()
                if not sys.is_finalizing():  # a thread that is started then is never run, and is waited for
                    minute = threading.Timer(self._minute_s, self._end, (key,))
                    minute.daemon = True
                    minute.start()
            passes = kind.logged < MAX_LOGGED
            kind.logged += passes
            kind.left_out += not passes
        return passes

    def _end(self, key: tuple[str, int, str]) -> None:
        """A minute is over."""
        with self._lock:
            kind = self._kinds.pop(key)
        if kind.left_out:
            name, level, words = key
            logging.getLogger(name).log(level, _LEFT_OUT, kind.left_out, self._minute_s, words)
