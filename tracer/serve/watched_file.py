"""An operator's file that is reloaded when it changes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import yaml
from msgspec import ValidationError, convert

from kvtrail.refused import Refused

logger = logging.getLogger("kvtrail")

LOOK_AGAIN_S = 1.0
"""Interval in which a file is checked."""
T = TypeVar("T")
_ENTRY = re.compile(r" - at `\$\[(\d+)\]\.?([^`]*)`")
"""Matches the position of an invalid list entry in msgspec's message."""


class WatchedFile(Generic[T]):
    """The content of a file, or `absent` if no file is named. If it cannot be used after a change, the old content stays, or
    `revoked` replaces it."""

    def __init__(
        self,
        path: Path | None,
        read: Callable[[Path], T],
        absent: T,
        *,
        revoked: T | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` raises Refused if the file cannot be used, with its name and the reason, and so does this."""
        self._path, self._read, self._revoked, self._clock = path, read, revoked, clock
        self._looked_s, self._seen = clock(), () if path is None else _stamp(path)
        self._content = absent if path is None else read(path)
        self._trouble = "ok"

    @property
    def content(self) -> T:
        """The content; the same object until it changes."""
        if self._path is not None and self._clock() - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = self._clock()
            if (stamp := _stamp(self._path)) != self._seen:
                self._seen = stamp
                self._read_again(self._path)
        return self._content

    @property
    def status(self) -> str | None:
        """`ok`, or why the current file is not used; None if there is no file."""
        _ = self.content
        return None if self._path is None else self._trouble

    def _read_again(self, path: Path) -> None:
        try:
            self._content, self._trouble = self._read(path), "ok"
            logger.info("%s has changed and was reloaded", path)
        except Refused as error:
            self._trouble = str(error)
            if self._revoked is None:
                logger.error("%s; its old content stays in use", error)
            else:
                self._content = self._revoked
                logger.error("%s; its old content is revoked", error)


def read_yaml(path: Path, what: str, type_: type[T], absent: T) -> T:
    """Read a YAML file, which contains `what`, as this type; every scalar is read as text. Raises Refused; for a list, its
    text has the line of the entry."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the {what}: {error}") from error
    try:
        return convert(yaml.load(text, yaml.BaseLoader) or absent, type_)
    except (yaml.YAMLError, ValidationError) as error:
        said = " ".join(str(error).split())
        if entry := _ENTRY.search(said):
            line = yaml.compose(text).value[int(entry[1])].start_mark.line + 1
            said = f"line {line}: {said[: entry.start()]}{f' in {entry[2]!r}' if entry[2] else ''}"
        raise Refused(f"cannot use the {what} in {path}: {said}") from error


def _stamp(path: Path) -> tuple[int, ...]:
    """A stamp that changes with the file; empty if there is no such file."""
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino
