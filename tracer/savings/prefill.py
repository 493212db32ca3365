"""An engine's prefill rate, measured from its own steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Schedule

PREFILL_SHARE = 0.9
"""Minimum share of prefill tokens in a step that measures the prefill rate. Decodes would add to its time."""


@dataclass(slots=True)
class _EngineStep:
    at_ns: int
    tokens: int = 0
    prefill: int = 0
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each of its requests: the epoch, and the token up to which the step computes it."""


@dataclass(slots=True)
class PrefillTimer:
    """Measures the prefill rate of engines from their own steps.

    A step lasts until the next step in which one of its requests continues exactly where it stopped. Then the engine was not
    idle in between, and no step between them was lost. This needs level `detailed`, which records the step after a prefill;
    at level `basic` nothing is measured.
    """

    _now: dict[tuple[str, str], tuple[_EngineStep | None, _EngineStep]] = field(default_factory=dict)
    """By recorder and connector: the step before the current one, and the current one."""

    def enter(self, event: Schedule, total: int) -> Mapping[str, int]:
        """Enter one request's part of a step. Returns the prefill tokens and the duration of the previous step, once it is
        known, if that step was nearly all prefill. `total` is the number of the request's tokens at its admission."""
        key = (event.recorder, event.connector_id)
        before, now = self._now.get(key) or (None, _EngineStep(event.start_ns))
        if event.start_ns > now.at_ns:
            before, now = now, _EngineStep(event.start_ns)
        elif event.start_ns < now.at_ns:
            return {}  # of a step that is over
        measured: Mapping[str, int] = {}
        request, end = event.request or "", event.computed + event.scheduled
        if before is not None and before.ends.get(request) == (event.epoch, event.computed):
            if before.prefill and before.prefill >= PREFILL_SHARE * before.tokens:
                measured = {"prefill": before.prefill, "prefill_ns": now.at_ns - before.at_ns}
            before = None
        now.tokens = event.scheduler_tokens or now.tokens + event.scheduled
        now.prefill += max(0, min(end, total) - event.computed)
        now.ends[request] = (event.epoch, end)
        self._now[key] = (before, now)
        return measured

    def forget(self, recorder: str) -> None:
        """Drop the steps of a recorder."""
        for key in [key for key in self._now if key[0] == recorder]:
            del self._now[key]
