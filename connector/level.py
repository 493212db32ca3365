"""How much is recorded, and how that is changed while the engine runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kvtrail.connector.settings import Level


class LevelSwitch:
    """The level of a process.

    Attributes:
        detailed: whether requests are recorded in detail from their next epoch on.
        tells_steps: whether any request may be recorded in detail: now, or since an epoch that began when the level was
            higher.
    """

    def __init__(self) -> None:
        self.detailed = False
        self.tells_steps = False
        self._file: Path | None = None

    def set(self, level: Level, file: str | None) -> None:
        """Record so much; and if there is a file, as much as it says, whenever it says so."""
        self._file = None if file is None else Path(file)
        self._change(level)

    def read(self) -> None:
        """Look into the file. One that is absent, or holds no level, changes nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                self._change(Level(self._file.read_text().strip()))

    def _change(self, level: Level) -> None:
        self.detailed = level is Level.DETAILED
        self.tells_steps = self.tells_steps or self.detailed
