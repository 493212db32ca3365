"""Looks over the methods of an object of a connector, which are called as before.

Some are called in every step of an engine: a look takes few instructions where there is nothing to note.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

End = Callable[[Any, Exception | None], object]
"""Sees how a call ends: its result, or what it raised."""


def _left_out(error: Exception) -> None:
    """Nobody asks what could not be read of a call."""


def watch(
    owner: Any, call: str, begin: Callable[..., End | None], failed: Callable[[Exception], object] = _left_out
) -> None:
    """Let `begin` see the arguments of a method before each call, and what it returns see how the call ends; a coroutine's
    ends when it has run. `failed` gets what either of the two raises. An object without the method, of another version, stays
    as it is."""
    plain = getattr(owner, call, None)
    if plain is None:
        return

    def begun(*arguments: Any, **named: Any) -> End | None:
        try:
            return begin(*arguments, **named)
        except Exception as error:
            failed(error)
            return None

    def ended(end: End | None, result: Any, error: Exception | None) -> None:
        try:
            if end is not None:
                end(result, error)
        except Exception as raised:
            failed(raised)

    @wraps(plain)
    def watched(*arguments: Any, **named: Any) -> Any:
        end = begun(*arguments, **named)
        try:
            result = plain(*arguments, **named)
        except Exception as error:
            ended(end, None, error)
            raise
        ended(end, result, None)
        return result

    @wraps(plain)
    async def watched_coroutine(*arguments: Any, **named: Any) -> Any:
        end = begun(*arguments, **named)
        try:
            result = await plain(*arguments, **named)
        except Exception as error:
            ended(end, None, error)
            raise
        ended(end, result, None)
        return result

    setattr(owner, call, watched_coroutine if iscoroutinefunction(plain) else watched)


def after(
    owner: Any, call: str, note: Callable[..., object], failed: Callable[[Exception], object] = _left_out
) -> None:
    """Let `note` see what a method of an object returns, and its arguments. `failed` gets what `note` raises. An object
    without the method, of another version, stays as it is."""
    plain = getattr(owner, call, None)
    if iscoroutinefunction(plain):

        def begin(*arguments: Any, **named: Any) -> End:
            return lambda result, error: None if error is not None else note(result, *arguments, **named)

        watch(owner, call, begin, failed)
        return
    if plain is None:
        return

    @wraps(plain)
    def watched(*arguments: Any, **named: Any) -> Any:
        result = plain(*arguments, **named)
        try:
            note(result, *arguments, **named)
        except Exception as error:
            failed(error)
        return result

    setattr(owner, call, watched)
