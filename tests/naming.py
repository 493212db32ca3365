"""Loops in tests: one that fails names the item at which it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(*item: object) -> Iterator[None]:
    """For the body of a loop: what fails in it gets a note with the item."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"at {', '.join(map(str, item))}")
        raise
