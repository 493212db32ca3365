"""Logs a warning, and not again for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("kvtrail")

EVERY_S = 60.0


class ThrottledLog:
    """Logs a warning once a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_s: float | None = None

    def warn(self, text: str, *values: object) -> bool:
        """Log a warning, unless the last one is less than a minute old. Returns whether it was logged."""
        now_s = self._clock()
        if self._logged_s is not None and now_s - self._logged_s < EVERY_S:
            return False
        self._logged_s = now_s
        logger.warning(text, *values)
        return True
