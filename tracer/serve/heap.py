"""The memory that the C library keeps for itself, given back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of glibc's `mallopt(3)`."""
LARGE_BYTES = 2**18
"""What is as large is mapped alone, and unmapped when it is freed."""
ARENAS = 2


def configure() -> None:
    """Have large requests leave no holes, and threads no arenas of their own. Does nothing where the library is not glibc."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Give the system what is free."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
