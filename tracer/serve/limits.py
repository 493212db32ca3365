"""How much the sidecar takes at a time, and of the system (files, memory). The defaults suit a process of 512 MiB."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass
from functools import cache
from typing import Any

MIB = 2**20
MAX_REQUESTS = 25_000
"""Of vLLM, with accounts that are held: 9 KB each, whether they run or have ended lately."""
RETRY_S = 6
"""After how many seconds a sender is asked to try again. An exporter of OpenTelemetry's SDK for Python tries six times: so it
lasts 30 seconds where its own timeout is as long, and with its default of 10 seconds it still tries twice."""


MAX_DESCRIPTORS = 65_536

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of glibc's `mallopt(3)`."""
LARGE_BYTES = 2**18
"""What is as large is mapped alone, and unmapped when it is freed."""
ARENAS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds what the sidecar takes in.

    Attributes:
        max_request_mib: MiB of one OTLP request, unpacked; `kvtrail serve --max-request-mib`.
        max_connections: connections over HTTP.
        receive_seconds: how long a body over HTTP may take to arrive, and a connection to ask for something.
    """

    max_request_mib: int = 4
    max_connections: int = 500
    receive_seconds: int = 30

    @property
    def request_bytes(self) -> int:
        """The largest request."""
        return self.max_request_mib * MIB


DEFAULTS = Limits()


def raise_descriptors() -> None:
    """Raise this process's soft limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
