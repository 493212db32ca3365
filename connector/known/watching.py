"""Observes calls of the methods of a connector's object, without changing them.

Some methods are called in every step of an engine, so an observer takes few instructions if there is nothing to note.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Self

End = Callable[[Any, Exception | None], object]
"""Called at the end of a call with its result, or with the exception that it raised."""
Failed = Callable[[Exception], object]


def _left_out(error: Exception) -> None:
    """Ignore the error of an observer."""


class _Call:
    """One call of a method, as a context that ends with it."""

    def __init__(self, begin: Callable[..., End | None], failed: Failed, /, *arguments: Any, **named: Any) -> None:
        self.result: Any = None
        self._failed = failed
        self._end: End | None = None
        try:
            self._end = begin(*arguments, **named)
        except Exception as error:
            failed(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._end is None or not (error is None or isinstance(error, Exception)):
            return
        try:
            self._end(self.result, error)
        except Exception as raised:
            self._failed(raised)


def watch(owner: Any, call: str, begin: Callable[..., End | None], failed: Failed = _left_out) -> None:
    """Call `begin` with the arguments of a method before each call, and call its result at the end of the call. The call of a
    coroutine ends when the coroutine has run. `failed` gets exceptions of both observers. An object without the method, of
    another version, is not changed."""
    plain = getattr(owner, call, None)
    if plain is None:
        return

    @wraps(plain)
    def watched(*arguments: Any, **named: Any) -> Any:
        with _Call(begin, failed, *arguments, **named) as each:
            each.result = plain(*arguments, **named)
        return each.result

    @wraps(plain)
    async def watched_coroutine(*arguments: Any, **named: Any) -> Any:
        with _Call(begin, failed, *arguments, **named) as each:
            each.result = await plain(*arguments, **named)
        return each.result

    setattr(owner, call, watched_coroutine if iscoroutinefunction(plain) else watched)


def after(owner: Any, call: str, note: Callable[..., object], failed: Failed = _left_out) -> None:
    """Call `note` with the result and the arguments of each call of a method that does not raise. `failed` gets exceptions of
    `note`. An object without the method, of another version, is not changed."""

    def begin(*arguments: Any, **named: Any) -> End:
        return lambda result, error: note(result, *arguments, **named) if error is None else None

    watch(owner, call, begin, failed)
