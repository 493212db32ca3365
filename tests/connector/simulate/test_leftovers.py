"""What is read from a connector's own attributes: sizes of what is temporary, and bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from kvtrail.connector.simulate.judges.leftovers import stored_bytes, temporary


class Mine:
    """A connector with one attribute."""

    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


@pytest.mark.parametrize(
    ("name", "value", "size"),
    [
        ("_pins", Counter(a=2, b=1), 3),
        ("_pins", Counter(a=-1), 1),
        ("_pins", Counter(a=-1, b=1), 2),
        ("inflight", -2, 2),
        ("pending_loads", {"a": object(), "b": object()}, 2),
        ("pending_loads", [], 0),
        ("total_pins", 7, None),
        ("table", {"a": 1}, None),
    ],
    ids=["counts", "given back twice", "both", "a number", "entries", "none", "lasting", "anything else"],
)
def test_the_size_of_what_is_temporary_by_its_name(name: str, value: Any, size: int | None) -> None:
    assert temporary(Mine(name, value), frozenset()) == ({} if size is None else {f"Mine.{name}": size})
    assert temporary(Mine(name, value), frozenset({name})) == {}


def test_bytes_are_counted_once_wherever_they_lie() -> None:
    class Worker:
        def __init__(self) -> None:
            whole, array = torch.zeros(100), np.zeros(50, np.uint8)
            self.layers = {"a": whole, "b": whole[:10], "c": [array, array[5:]]}
            self.files = {b"key": b"seven" + bytes(2), "ring": bytearray(11)}
            self.pinned = torch.zeros(3, dtype=torch.int8)
            self.views = [self.pinned.numpy()[:2], self.pinned.numpy()]

    assert stored_bytes([Worker()]) == 400 + 50 + 7 + 11 + 3
    worker = Worker()
    assert stored_bytes([worker, worker]) == stored_bytes([worker]), "two ranks that share it"
