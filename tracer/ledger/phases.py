"""The phases of a request over time, from the facts of its account, for the live view and the exports. Pure: no clock.

A phase lasts until the next one begins. Transfers (loads and stores) overlap the phases and have their own ends. Unrecorded
phases are not guessed: at level `basic` only the first step of a request is recorded, so from then on it is `running`,
whether it prefills or decodes, unless a store shows when the prompt was done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any

from kvtrail.tracer.events.events import Load, LoadPlan
from kvtrail.tracer.ledger.facts import (
    Admitted,
    Began,
    Copied,
    Ended,
    Fact,
    LoadReceived,
    LookedUp,
    Preempted,
    Ran,
    Released,
    Transferred,
)

MAX_CHANGES = 256
"""Maximum number of changes, and of transfers, remembered per request; beyond that the shorter half is forgotten."""


class Phase(IntEnum):
    """The phase of a request. The numbers are stored, so their meaning never changes."""

    QUEUED = 0
    LOOKUP = 1
    WAITING = 2
    """Waiting for remote KV: an asynchronous load."""
    LOAD = 3
    PREFILL = 4
    DECODE = 5
    PREEMPTED = 6
    STORE = 7
    """As a phase: the request has ended, and its blocks are kept until their store ends."""
    DONE = 8
    RUNNING = 9
    """Prefill or decode: the recorder's level does not show which."""
    FAILED = 10


WORDS: dict[Phase, str] = {
    Phase.QUEUED: "queued",
    Phase.LOOKUP: "lookup",
    Phase.WAITING: "waiting for remote KV",
    Phase.LOAD: "load",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.PREEMPTED: "preempted",
    Phase.STORE: "store",
    Phase.DONE: "done",
    Phase.RUNNING: "running",
    Phase.FAILED: "failed",
}
"""The phases in words."""

_ENDS = (Phase.STORE, Phase.DONE)
"""The phases of an ended request."""


@dataclass(slots=True)
class Phases:
    """The phases of one request so far. Times are Unix nanoseconds."""

    _changes: list[tuple[int, Phase]] = field(default_factory=list)
    _transfers: list[tuple[int, int, Phase]] = field(default_factory=list)
    _whole_ns: list[int] = field(default_factory=list)
    """Ends of steps that were recorded at level `basic` and computed the rest of the prompt."""
    _waits: Phase = Phase.QUEUED
    """The current phase between lookups and steps."""

    def enter(self, fact: Fact) -> None:
        """Enter the fact of the request's next event. The order between workers and scheduler does not matter."""
        if enter := _ENTER.get(type(fact)):
            enter(self, fact)
        if fact.event.error is not None:
            self._change(fact.event.end_ns, Phase.FAILED)

    def changes(self) -> list[tuple[int, Phase]]:
        """When each phase began, in order of time."""
        changes = sorted(self._changes)
        if not self._transfers:
            return changes
        for at_ns in dict.fromkeys(self._whole_ns):  # several connectors may record the same step
            if (at_ns, Phase.RUNNING) not in changes:
                continue
            after = next((ns for ns, _ in changes if ns > at_ns), None)
            ends = [to for _, to, phase in self._transfers if phase is Phase.STORE and to > at_ns]
            # A step's tokens are stored when the step is over: then the prompt ends, and the output begins.
            if ends and (after is None or min(ends) < after):
                changes[changes.index((at_ns, Phase.RUNNING))] = (at_ns, Phase.PREFILL)
                changes.append((min(ends), Phase.DECODE))
                changes.sort()
        return changes

    def transfers(self) -> list[tuple[int, int, Phase]]:
        """Loads and stores as (from, to, phase), in order of time."""
        return sorted(self._transfers)

    def _change(self, at_ns: int, phase: Phase) -> None:
        last = self._changes[-1][1] if self._changes else None
        if last is phase or (last in _ENDS and phase not in _ENDS):  # no phase follows the end
            return
        self._changes.append((at_ns, phase))
        if len(self._changes) > MAX_CHANGES:
            self._thin()

    def _thin(self) -> None:
        changes = sorted(self._changes)
        lasts = [after - at for (at, _), (after, _) in pairwise(changes)]
        longest_first = sorted(range(len(lasts)), key=lambda n: -lasts[n])
        # The last one has not ended, so it is always kept.
        kept = sorted([*longest_first[: len(lasts) // 2], len(lasts)])
        self._changes = [changes[n] for n in kept]
        held = {at for at, _ in self._changes}
        self._whole_ns = [at for at in self._whole_ns if at in held]

    def _transfer(self, from_ns: int, to_ns: int, phase: Phase) -> None:
        self._transfers.append((from_ns, to_ns, phase))
        if len(self._transfers) > MAX_CHANGES:
            self._transfers.sort(key=lambda t: t[1] - t[0])
            del self._transfers[: MAX_CHANGES // 2]

    def _enter_began(self, fact: Began) -> None:
        self._change(fact.event.start_ns, Phase.QUEUED)

    def _enter_looked_up(self, fact: LookedUp) -> None:
        self._change(fact.event.start_ns, Phase.LOOKUP)
        if fact.event.returned is not None:  # otherwise 'ask me later': the lookup continues
            self._change(fact.event.end_ns, self._waits)

    def _enter_admitted(self, fact: Admitted) -> None:
        if fact.event.allocated and fact.lookup.is_async:
            self._change(fact.event.end_ns, Phase.WAITING)

    def _enter_load_received(self, fact: LoadReceived) -> None:
        self._change(fact.event.end_ns, self._waits)

    def _enter_ran(self, fact: Ran) -> None:
        event, total, self._waits = fact.event, fact.total, Phase.QUEUED
        if event.drafted is not None or event.blocks_ids is not None:  # level `detailed`: every step is recorded
            is_prefill = total is None or event.computed < total
            self._change(event.end_ns, Phase.PREFILL if is_prefill else Phase.DECODE)
            return
        self._change(event.end_ns, Phase.RUNNING)
        if total is not None and event.computed + event.scheduled >= total:
            self._whole_ns.append(self._changes[-1][0])

    def _enter_preempted(self, fact: Preempted) -> None:
        self._waits = Phase.PREEMPTED
        self._change(fact.event.end_ns, Phase.PREEMPTED)

    def _enter_copied(self, fact: Copied) -> None:
        event = fact.event
        self._transfer(event.start_ns, event.end_ns, Phase.LOAD if isinstance(event, Load) else Phase.STORE)

    def _enter_transferred(self, fact: Transferred) -> None:
        plan = fact.plan
        self._transfer(plan.end_ns, fact.event.end_ns, Phase.LOAD if isinstance(plan, LoadPlan) else Phase.STORE)

    def _enter_ended(self, fact: Ended) -> None:
        self._change(fact.event.end_ns, Phase.STORE if fact.event.free_delayed else Phase.DONE)

    def _enter_released(self, fact: Released) -> None:
        self._change(fact.event.end_ns, Phase.DONE)


_ENTER: dict[type, Callable[[Phases, Any], None]] = {
    Began: Phases._enter_began,
    LookedUp: Phases._enter_looked_up,
    Admitted: Phases._enter_admitted,
    LoadReceived: Phases._enter_load_received,
    Ran: Phases._enter_ran,
    Preempted: Phases._enter_preempted,
    Copied: Phases._enter_copied,
    Transferred: Phases._enter_transferred,
    Ended: Phases._enter_ended,
    Released: Phases._enter_released,
}
