"""Finds the methods of a class that follow events, by the kind of event that each follows."""

from __future__ import annotations

from collections.abc import Callable

from kvtrail.tracer.events.events import UNFAMILIAR
from kvtrail.tracer.events.semconv import Kind

_NAMES: dict[str, str] = {**{kind: kind.name.lower() for kind in Kind}, UNFAMILIAR: "unfamiliar"}


def handlers(cls: type) -> dict[str, Callable[..., None]]:
    """The methods of a class that process events, by kind: `_enter_lookup` processes events of `Kind.LOOKUP`."""
    return {kind: getattr(cls, method) for kind, name in _NAMES.items() if hasattr(cls, method := f"_enter_{name}")}
