"""A file of an operator that is read again when it has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

logger = logging.getLogger("kvtrail")

LOOK_AGAIN_S = 1.0
"""How often a file is looked at."""
T = TypeVar("T")


class Unusable(ValueError):
    """A file cannot be used; the text names it and the reason."""


class WatchedFile(Generic[T]):
    """The content of a file. If it cannot be used after a change, what it said before stays, or `revoked` replaces it.

    Attributes:
        trouble: why the file as it is now is not used; None if it is used.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        revoked: T | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` raises Unusable, and so does this."""
        self._path, self._read, self._revoked, self._clock = path, read, revoked, clock
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
            if self._revoked is None:
                logger.error("%s; what it said before stays in use", error)
            else:
                self._content = self._revoked
                logger.error("%s; nothing that it said before counts any more", error)


def read_yaml(path: Path, what: str, parse: Callable[[str], Any]) -> Any:
    """A file of YAML, which has `what`, as `parse` makes it of its text. Raises Unusable."""
    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"cannot read the {what}: {error}") from error
    except yaml.YAMLError as error:
        raise Unusable(f"the {what} in {path} are no YAML: {' '.join(str(error).split())}") from error


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with the content of a file; empty if there is no such file."""
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino
