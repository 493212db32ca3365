"""Compares a store's capacity at the end of a run with its capacity when new, and checks that its workers free the memory of
what it evicts.

A leaked slot or lease makes a store smaller. Neither shows in the answers of lookups or in the KV that requests read. So when
all requests have ended, new prompts arrive one after the other; then they arrive again, the latest first, until one is not
found. A new engine gives the reference value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.judges.leftovers import stored_bytes
from kvtrail.connector.simulate.scenario import Arrival, Scenario, Segment
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE, OPTIONS
from kvtrail.connector.simulate.workers.own_worker import OwnWorker

PROMPTS = 16
TOKENS = 8 * BLOCK_SIZE + 1
"""Tokens of each prompt. All prompts together fill the smallest stores that `kvtrail check` draws, but no large one."""
SMALLEST_STEP = 96
"""Minimum `max_num_batched_tokens`. With smaller steps, filling a store takes longer than most scenarios."""
TRIES = 3
"""Number of consecutive tries in which a store must hold less than each of as many new stores: which transfers end late is
random."""

Run = Callable[[Sequence[Arrival]], None]
"""Runs some more requests, until all of their transfers have ended."""


class Unserved(Exception):
    """Some requests that should fill the store never end."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of the prompts a store holds.

    Attributes:
        tokens: the number of tokens that it holds.
        is_full: whether it cannot hold all of the prompts.
        came: bytes of KV of the prompts that arrived when the store was full; 0 if not measured.
        grown: growth of the workers' memory meanwhile, in bytes; 0 if not measured.
    """

    tokens: int
    is_full: bool
    came: int = 0
    grown: int = 0


def can_be_measured(scenario: Scenario) -> bool:
    """Whether filling the store takes less time than the scenario itself."""
    step: int = scenario.settings.get("max_num_batched_tokens", OPTIONS["max_num_batched_tokens"])
    return step >= SMALLEST_STEP


def lost(stage: BareScheduler, run: Run, when_new: Callable[[bool], Capacity]) -> str | None:
    """A sentence that says how much capacity the store has lost; None if it has lost none. `when_new` is called only if the
    store is full, since one that holds all of the prompts shows nothing; its argument is `at_once` of `measured`.

    Raises:
        Unserved: there is nothing to compare.
    """
    most, new = 0, sys.maxsize
    for number in range(TRIES):
        now = measured(stage, run, f"room-{number}", at_once=number > 0)
        if not now.is_full:
            return None
        most, new = max(most, now.tokens), min(new, when_new(number > 0).tokens)
        if most >= new:
            return None
    return (
        f"When the connector was new, it held {new} tokens or more of {PROMPTS} prompts of {TOKENS} tokens that came one"
        f" after the other. All requests have ended, and of as many other prompts it now holds {most} tokens at the most, in"
        f" {TRIES} tries: room for {new - most} tokens is lost. Slots that nobody gave back take it for ever, and so do pins"
        " or leases of requests that have ended."
    )


def measured_when_new(stage: BareScheduler, run: Run, *, at_once: bool) -> Capacity:
    """The capacity of a store that has been filled only once before."""
    _offer(stage, run, "first")
    if not isinstance(stage.worker, OwnWorker):
        return measured(stage, run, "room-0", at_once=at_once)
    workers, caches = stage.worker.connectors, stage.worker.model.caches.values()
    came = PROMPTS * (TOKENS // min(stage.block_sizes)) * sum(cache.tensor[0].nbytes for cache in caches)
    before = stored_bytes(workers)
    held = measured(stage, run, "room-0", at_once=at_once)
    filled = stored_bytes(workers)
    held = replace(held, came=came, grown=filled - before)
    if not_given_back(held) is None:
        return held
    _offer(stage, run, "last")  # a store that is not filled by the first prompts alone is by now
    return replace(held, grown=stored_bytes(workers) - filled)


def not_given_back(held: Capacity) -> str | None:
    """A sentence that says that the workers of a full store keep what it evicts; None if their memory has grown by less than
    half of the KV that arrived."""
    if not held.is_full or 2 * held.grown <= held.came:
        return None
    return (
        f"More prompts came than the connector holds, and then {PROMPTS} others of {TOKENS} tokens: {held.came:,} bytes of"
        f" KV. Meanwhile the memory of its workers has grown by {held.grown:,} bytes. What the scheduler's side evicts, the"
        " workers have to give back or to write over. These do neither, and run out of memory."
    )


def measured(stage: BareScheduler, run: Run, name: str, *, at_once: bool = False) -> Capacity:
    """How much of the prompts with this name the store holds when all of them have arrived. With `at_once`, each prompt
    arrives again before the next one: a store may protect what was found more than once from eviction."""
    prompts = _offer(stage, run, name, at_once=at_once)
    answers: dict[str, int] = {}

    def listen(request: object, computed: int, returned: int | None) -> None:
        if returned is not None:
            answers.setdefault(request.request_id, computed + returned)  # type: ignore[attr-defined]

    stage.scheduler.reset_prefix_cache()
    stage.calls.on_lookup.append(listen)
    _serve(stage, run, [Arrival(f"{name}-again-{n}", prompt, 2) for n, prompt in reversed(list(enumerate(prompts)))])
    stage.calls.on_lookup.remove(listen)
    stage.scheduler.reset_prefix_cache()
    found = [answers.get(f"{name}-again-{n}", 0) for n in reversed(range(PROMPTS))]
    # The first prompt that is not found whole is stored again, and so leaves less room for the prompts behind it.
    whole = next((n for n, each in enumerate(found) if each < found[0]), PROMPTS)
    return Capacity(sum(found[: whole + 1]), is_full=whole < PROMPTS or not found[0])


def _offer(stage: BareScheduler, run: Run, name: str, *, at_once: bool = False) -> list[tuple[Segment, ...]]:
    """Run the prompts one after the other: each is stored before the next one arrives, and with `at_once` also loaded."""
    prompts: list[tuple[Segment, ...]] = [((f"{name}-{n}", TOKENS),) for n in range(PROMPTS)]
    if at_once:
        for n, prompt in enumerate(prompts):
            for turn in range(2):
                _serve(stage, run, [Arrival(f"{name}-{n}-{turn}", prompt, 2)])
                stage.scheduler.reset_prefix_cache()
        return prompts
    for_stores = 2 + stage.latest_steps
    _serve(
        stage,
        run,
        [Arrival(f"{name}-{n}", prompt, 2, stage.steps + n * for_stores) for n, prompt in enumerate(prompts)],
    )
    return prompts


def _serve(stage: BareScheduler, run: Run, arrivals: Sequence[Arrival]) -> None:
    """Run the requests to their ends. No load fails any more: a store drops what failed to load, and would then hold less by
    chance.

    Raises:
        Unserved: some never end.
    """
    if stage.worker is not None:
        stage.worker.loads_may_fail = False
    run(arrivals)
    if stage.scheduler.has_unfinished_requests():
        raise Unserved
