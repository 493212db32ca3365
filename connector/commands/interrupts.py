"""Ctrl-C, and SIGTERM, in a long run that has something to say when it is ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """The signals that came: Ctrl-C, or SIGTERM, as a job's time limit sends it. Each raises KeyboardInterrupt as well, which
    is lost where Python is in a callback of its own, such as a weak reference's. What is ignored, or handled by others, stays
    so."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
