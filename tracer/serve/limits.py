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
OWN_DESCRIPTORS = 128
"""Of files, and of what else the process opens for itself."""
BEHIND_GATE = 3
"""Descriptors of a connection over gRPC: the sender's, and both ends of the one to the server behind the gate."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of glibc's `mallopt(3)`."""
LARGE_BYTES = 2**18
"""What is as large is mapped alone, and unmapped when it is freed."""
ARENAS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds what the sidecar takes in.

    Attributes:
        max_request_mib: MiB of one OTLP request, as it comes and unpacked; `kvtrail serve --max-request-mib`.
        max_waiting: OTLP requests that may wait over each protocol; the sender of the next tries again.
        max_waiting_mib: MiB of OTLP requests that may be received or wait over each protocol.
        max_connections: connections over each protocol.
        max_readers: readers of /api/tail at a time.
        receive_seconds: how long a body may take to arrive, and a connection to ask for something.
    """

    max_request_mib: int = 8
    max_waiting: int = 256
    max_waiting_mib: int = 64
    max_connections: int = 500
    max_readers: int = 200
    receive_seconds: int = 30

    @property
    def request_bytes(self) -> int:
        """The largest request."""
        return self.max_request_mib * MIB

    @property
    def waiting_bytes(self) -> int:
        """Of bodies."""
        return self.max_waiting_mib * MIB


DEFAULTS = Limits()


def raise_descriptors() -> int:
    """Raise this process's soft limit of open files as far as it may; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def grpc_connections(limits: Limits, descriptors: int) -> int:
    """How many connections the gRPC port takes, so that HTTP keeps all of its own: who asks for metrics, and kubelets, come
    over HTTP."""
    left = descriptors - OWN_DESCRIPTORS - limits.max_connections
    return max(min(limits.max_connections, left // BEHIND_GATE), 1)


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
