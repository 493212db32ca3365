"""The rules' own states for a request or an engine, besides the ledger's shared state. Pure.

A rule declares one class, `Rule.State`. Its methods `_enter_<kind>(event, known)` receive events of that kind, each before it
enters the account or the engine, which is `known`. The state of a request is dropped with its account, the state of an engine
with the recorder, and when events of the recorder are missing. State that all
engines share (`Rule.shares_state`) is kept. A state must bound its own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kvtrail.tracer.events.handlers import handlers

S = TypeVar("S")
Followers = Mapping[str, Sequence[tuple[type[Any], Callable[..., None]]]]
"""By kind of event: the states that receive it, each with its method."""


class RuleStates(dict[type[Any], Any]):
    """The rules' states for one request or engine, by class; each is created on first use."""

    __slots__ = ("_shared",)

    def __init__(self, shared: Mapping[type[Any], Any] | None = None) -> None:
        """`shared` are the states that all engines share; they are kept when the others are dropped."""
        self._shared = shared or {}
        super().__init__(self._shared)

    def clear(self) -> None:
        super().clear()
        self.update(self._shared)

    def __missing__(self, state: type[S]) -> S:
        made = self[state] = state()
        return made


def followers(states: Iterable[type[Any]]) -> Followers:
    """The methods of these classes that receive events."""
    found: dict[str, list[tuple[type[Any], Callable[..., None]]]] = {}
    for state in states:
        for kind, enter in handlers(state).items():
            found.setdefault(kind, []).append((state, enter))
    return found
