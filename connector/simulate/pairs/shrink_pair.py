"""Shrinks a failing scenario of two engines: fewer requests, a simpler network, engines that are never busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.pairs.pair_scenario import PairScenario
from kvtrail.tracer.history.shrink import minimal


def shrink_pair(
    scenario: PairScenario,
    fails: Callable[[PairScenario], bool],
    *,
    tries: int | None,
    on_try: Callable[[PairScenario], None] = lambda smallest: None,
) -> PairScenario:
    """As `shrink`, for two engines."""
    smallest, tried = scenario, 0

    def fails_in_time(candidate: PairScenario) -> bool:
        nonlocal smallest, tried
        if tries is not None and tried >= tries:
            return False
        tried += 1
        on_try(smallest)
        if not fails(candidate):
            return False
        smallest = candidate
        return True

    while True:
        before = smallest
        _shrink_once(before, fails_in_time, lambda: smallest)
        if smallest == before or tried == tries:
            return smallest


def _shrink_once(
    scenario: PairScenario, fails: Callable[[PairScenario], bool], smallest: Callable[[], PairScenario]
) -> None:
    minimal(scenario.requests, lambda kept: bool(kept) and fails(replace(smallest(), requests=tuple(kept))))
    minimal(scenario.prefills, lambda kept: fails(replace(smallest(), prefills=tuple(kept))))
    minimal(scenario.decodes, lambda kept: fails(replace(smallest(), decodes=tuple(kept))))
    at_once = tuple(replace(each, at_tick=0, kept_ticks=0) for each in smallest().requests)
    prompt, drawn = Schedule(transfer_ticks=0, message_ticks=0, handshake_ticks=0), smallest().network
    for simpler in (
        {"prefill_every": 1, "decode_every": 1, "latest_steps": 0},
        {"network": replace(prompt, failing=drawn.failing, seed=drawn.seed)},
        {"network": prompt},
        {"requests": at_once},
        {"seed": 0},
    ):
        if (candidate := replace(smallest(), **simpler)) != smallest():  # type: ignore[arg-type]
            fails(candidate)
