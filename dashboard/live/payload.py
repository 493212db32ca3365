"""What the component is given, and which window the tracer is asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.live.address import View

AROUND = 0.5
"""So much of the range is asked for on either side of it as well: then a small move needs no new answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of `/api/lanes`; two that are equal have the same answer while the view is paused."""

    from_ns: int
    to_ns: int
    engine: str
    connector: str
    status: str
    q: str

    def parameters(self) -> dict[str, str | int]:
        """As the api has them."""
        return {name: getattr(self, name) for name in self.__slots__}


def question(view: View, *, now_ms: float) -> Question:
    """The window to ask for."""
    to_ms = now_ms if view.to_ms is None else view.to_ms
    air_ms = view.span_ms * AROUND
    begin_ms = max(0.0, to_ms - view.span_ms - air_ms)
    return Question(
        from_ns=int(begin_ms * 1e6),
        to_ns=max(int((to_ms + air_ms) * 1e6), int(begin_ms * 1e6) + 1_000_000),
        engine=view.engine,
        connector=view.connector,
        status=view.status,
        q=view.q,
    )


def payload(answer: Row | None, view: View, *, is_away: bool) -> dict[str, Any]:
    """The component's data. JavaScript's numbers hold no nanoseconds since 1970: moments become milliseconds."""
    shown = None
    if answer is not None:
        moments = {name.replace("_ns", "_ms"): answer[name] / 1e6 for name in ("from_ns", "to_ns", "now_ns")}
        shown = {**answer, **moments}
    return {"answer": shown, "view": view.as_dict(), "is_away": is_away}
