"""How much the sidecar takes at a time, and of the system (files, memory). The defaults suit a process of 512 MiB."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

MIB = 2**20
MAX_REQUESTS = 25_000
"""Of vLLM, with accounts that are held: 9 KB each, whether they run or have ended lately."""
RETRY_S = 6
"""After how many seconds a sender is asked to try again. An exporter of OpenTelemetry's SDK for Python tries six times: so it
lasts 30 seconds where its own timeout is as long, and with its default of 10 seconds it still tries twice."""


def _limit(default: int, text: str) -> int:
    """An option of `kvtrail serve`, with its text."""
    return field(default=default, metadata={"help": text})


MAX_DESCRIPTORS = 65_536

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of glibc's `mallopt(3)`."""
LARGE_BYTES = 2**18
"""What is as large is mapped alone, and unmapped when it is freed."""
ARENAS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The options of `kvtrail serve` that bound what it takes in."""

    max_request_mib: int = _limit(4, "MiB of one OTLP request, unpacked; over gRPC 1 MiB as it comes.")
    max_connections: int = _limit(500, "Connections over HTTP.")
    max_readers: int = _limit(200, "Readers of /api/tail at a time.")
    receive_seconds: int = _limit(
        30, "Seconds that a body over HTTP may take to arrive, and a connection to ask for something."
    )

    @property
    def request_bytes(self) -> int:
        """The largest request."""
        return self.max_request_mib * MIB


DEFAULTS = Limits()


def raise_descriptors() -> int:
    """Raise this process's soft limit of open files as far as it may; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def texts() -> dict[str, str]:
    """What each option means, by its name."""
    return {each.name: each.metadata["help"] for each in fields(Limits)}


def configure_heap() -> None:
    """Have large allocations leave no holes in the C library's heap, and threads no arenas of their own. Does nothing where
    the library is not glibc."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_M_ARENA_MAX, ARENAS)


def release_heap() -> None:
    """Give the system what is free in the heap."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
