"""The clock that the sidecar goes by, which tests replace."""

from typing import Protocol


class Clock(Protocol):
    """The part of the module `time` that is needed."""

    def time_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...
