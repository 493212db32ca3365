"""Says one thing in the log, and not again for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("kvtrail")

TELL_EVERY_S = 60.0


class Telling:
    """A warning that is told once a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_s: float | None = None

    def tell(self, text: str, *values: object) -> bool:
        """Log a warning, unless the last one was told less than a minute ago. Returns whether it was."""
        now_s = self._clock()
        if self._told_s is not None and now_s - self._told_s < TELL_EVERY_S:
            return False
        self._told_s = now_s
        logger.warning(text, *values)
        return True
