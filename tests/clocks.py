"""The pipeline's monotonic clock, which a test turns on."""

from __future__ import annotations

import time

import pytest


class Clock:
    """The monotonic clock, so much ahead."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return self.real() + self.ahead_ns

    real = staticmethod(time.monotonic_ns)


def turnable(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the pipeline has instead of its own."""
    made = Clock()
    monkeypatch.setattr("kvtrail.tracer.serve.receive.pipeline.time.monotonic_ns", made)
    return made
