"""Looks over the methods of an object of a connector, which are called as before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def after(owner: Any, call: str, note: Callable[..., object]) -> None:
    """Let `note` see what a method of an object returns, and its arguments. What `note` cannot read is left out. An object
    without the method, of another version, stays as it is."""
    plain = getattr(owner, call, None)
    if plain is None:
        return

    def noted(*arguments: Any, **named: Any) -> Any:
        result = plain(*arguments, **named)
        with suppress(Exception):
            note(result, *arguments, **named)
        return result

    setattr(owner, call, noted)


def around(owner: Any, call: str, begin: Callable[..., object], end: Callable[[BaseException | None], object]) -> None:
    """Let `begin` see the arguments of a method before it runs, and `end` what it raises, or None."""
    plain = getattr(owner, call, None)
    if plain is None:
        return

    def noted(*arguments: Any, **named: Any) -> Any:
        with suppress(Exception):
            begin(*arguments, **named)
        error: BaseException | None = None
        try:
            return plain(*arguments, **named)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with suppress(Exception):
                end(error)

    setattr(owner, call, noted)
