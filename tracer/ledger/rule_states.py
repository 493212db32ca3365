"""What single rules remember of a request or an engine, beside what the ledger knows for all of them. Pure.

A rule declares one class, `Rule.State`. Its methods `_enter_<kind>(event, known)` follow events of that kind, each before it
enters the account or the engine, which is `known`. The state of a request is forgotten with its account, that of an engine
with the recorder, and when events of the recorder are missing. What all
engines share (`Rule.shares_state`) is kept. A state bounds what it holds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kvtrail.tracer.events.handlers import handlers

S = TypeVar("S")
Followers = Mapping[str, Sequence[tuple[type[Any], Callable[..., None]]]]
"""By kind of event: the states that follow it, each with its method."""


class RuleStates(dict[type[Any], Any]):
    """The states that rules have of one request or engine, by class; each is made when it is first asked for."""

    __slots__ = ("_shared",)

    def __init__(self, shared: Mapping[type[Any], Any] | None = None) -> None:
        """`shared` are the states that all engines have together; they stay when the others are forgotten."""
        self._shared = shared or {}
        super().__init__(self._shared)

    def clear(self) -> None:
        super().clear()
        self.update(self._shared)

    def __missing__(self, state: type[S]) -> S:
        made = self[state] = state()
        return made


def followers(states: Iterable[type[Any]]) -> Followers:
    """The methods of these classes that follow events."""
    found: dict[str, list[tuple[type[Any], Callable[..., None]]]] = {}
    for state in states:
        for kind, enter in handlers(state).items():
            found.setdefault(kind, []).append((state, enter))
    return found
