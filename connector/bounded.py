"""A map that forgets its oldest entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(OrderedDict[Key, Value]):
    """Holds at most `limit` entries: a new one takes the place of the oldest, with which `on_evict` is then called. An entry
    that is set again keeps its age, unless it is moved to the end."""

    def __init__(self, limit: int, on_evict: Callable[[Key, Value], None] | None = None) -> None:
        super().__init__()
        self._limit, self._on_evict = limit, on_evict

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            evicted = self.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(*evicted)
