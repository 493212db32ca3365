"""A dictionary with a bounded number of entries, so that names chosen by outsiders cannot fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary of at most `most` entries, in insertion order. Adding an entry to a full one drops the oldest entry. If
    users call `move_to_end` at each use, it drops the least recently used one."""

    def __init__(self, most: int, *, on_drop: Callable[[K, V], object] | None = None) -> None:
        """`on_drop` is called with each dropped entry."""
        super().__init__()
        self.most = most
        self._on_drop = on_drop

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self.most:
            dropped = self.popitem(last=False)
            if self._on_drop is not None:
                self._on_drop(*dropped)
