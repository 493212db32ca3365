"""Ctrl-C in a long run that has something to say when it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """The Ctrl-C that came, as signals. Each raises KeyboardInterrupt as well, which is lost where Python is in a callback of
    its own, such as a weak reference's. Where a shell has us ignore Ctrl-C, it stays ignored."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
