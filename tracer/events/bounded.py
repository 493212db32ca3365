"""A dictionary with a bounded number of entries. What outsiders name must not fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary of at most `most` entries, in the order in which they were added: the oldest makes room for a new one.
    With `move_to_end`, that is the one that was not used for longest."""

    def __init__(self, most: int, *, on_drop: Callable[[K, V], object] | None = None) -> None:
        """`on_drop` gets each entry that had to make room."""
        super().__init__()
        self.most = most
        self._on_drop = on_drop

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self.most:
            dropped = self.popitem(last=False)
            if self._on_drop is not None:
                self._on_drop(*dropped)
