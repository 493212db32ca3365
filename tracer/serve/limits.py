"""Limits of concurrent work and of system resources (files, memory). The defaults suit a process of 512 MiB."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass
from functools import cache
from typing import Any

MIB = 2**20
MAX_REQUESTS = 25_000
"""vLLM requests with accounts in memory: 9 KB each, running or recently ended."""
RETRY_S = 6
"""Seconds after which a sender is asked to retry. An exporter of OpenTelemetry's Python SDK tries six times: this lasts 30
seconds if its own timeout is as long; with its default of 10 seconds it still tries twice."""


MAX_DESCRIPTORS = 65_536

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Parameters of glibc's `mallopt(3)`."""
LARGE_BYTES = 2**18
"""Allocations of this size have their own mapping, which is unmapped when they are freed."""
ARENAS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for received data.

    Attributes:
        max_request_mib: maximum MiB of one decompressed OTLP request; `kvtrail serve --max-request-mib`.
        max_connections: maximum number of HTTP connections.
        receive_seconds: maximum time for an HTTP body to arrive, and for a connection to send a request.
    """

    max_request_mib: int = 4
    max_connections: int = 500
    receive_seconds: int = 30

    @property
    def request_bytes(self) -> int:
        """Maximum size of a request in bytes."""
        return self.max_request_mib * MIB


DEFAULTS = Limits()


def raise_descriptors() -> None:
    """Raise this process's soft limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def configure_heap() -> None:
    """Keep large allocations out of the C library's heap, and use one arena for all threads. Does nothing if the library is
    not glibc."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_M_ARENA_MAX, ARENAS)


def release_heap() -> None:
    """Return the heap's free memory to the system."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
