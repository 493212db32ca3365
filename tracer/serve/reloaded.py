"""A file of an operator that is read again when it has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger("kvtrail")

LOOK_AGAIN_S = 1.0
"""How often a file is looked at."""
T = TypeVar("T")


class Unusable(ValueError):
    """A file cannot be used; the text names it and the reason."""


class Reloaded(Generic[T]):
    """What a file says. If it cannot be used after a change, what it said before stays.

    Attributes:
        trouble: why the file as it is now is not used; None if it is used.
    """

    def __init__(self, path: Path, read: Callable[[Path], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`read` raises Unusable, and so does this."""
        self._path, self._read, self._clock = path, read, clock
        self._looked_s, self._seen = clock(), _stamp(path)
        self._content = read(path)
        self.trouble: str | None = None

    @property
    def content(self) -> T:
        """What it says."""
        if self._clock() - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = self._clock()
            if (stamp := _stamp(self._path)) != self._seen:
                self._seen = stamp
                self._read_again()
        return self._content

    def _read_again(self) -> None:
        try:
            self._content, self.trouble = self._read(self._path), None
            logger.info("%s has changed, and is used as it is now", self._path)
        except Unusable as error:
            self.trouble = str(error)
            logger.error("%s; what it said before stays in use", error)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino
