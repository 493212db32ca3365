"""Two engines with vLLM's own NIXL connector: each token that the engine that decodes computes has a cause, and it says how
the hand-off ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from history import judge

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from faulty_pairs import DECODE, Mistake, PlayedPair, drawn
from recorded_runs import play_pair_once

from kvtrail.connector.registration import configuration
from kvtrail.tracer.events.events import Handoff, Received, Schedule
from kvtrail.tracer.model.causes import PEER, REUSED, Cause, Part

NIXL = configuration("NixlConnector", {})
HEALED = configuration("NixlConnector", {"kvtrail": {"guard": "heal"}})
LONG = pytest.mark.long


def of_takers(pair: PlayedPair) -> dict[str, tuple[Handoff, list[Part]]]:
    """The hand-off of each request that ran on the engine that decodes, and the parts of its first prompt, which are checked
    to make up what its first step found and what it left."""
    accounts, found = judge(pair.events).accounts, {}
    for taken in (each for each in pair.recorded[DECODE] if isinstance(each, Handoff)):
        steps = [
            e for e in pair.recorded[DECODE] if isinstance(e, Schedule) and e.request == taken.request and not e.epoch
        ]
        (first, *_) = accounts[taken.engine, taken.request or ""].causes or [None]
        if not steps or first is None:
            continue
        assert first.is_whole
        computed = sum(part.tokens for part in first.parts if part.cause not in REUSED)
        assert computed == first.lookup.total - steps[0].computed, taken.request
        found[taken.request or ""] = (taken, first.parts)
    return found


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=LONG)], ids=str)
def test_what_is_not_loaded_has_failed_and_else_it_is_the_last_token(seeds: range) -> None:
    causes: Counter[Cause] = Counter()
    for seed in seeds:
        pair = play_pair_once(drawn(seed, failing=0.3), NIXL)
        failed = {each.request for each in pair.recorded[DECODE] if isinstance(each, Received) and each.failed}
        for name, (taken, parts) in of_takers(pair).items():
            computed = [part for part in parts if part.cause not in REUSED]
            causes.update({part.cause: part.tokens for part in computed})
            assert {part.detail.engine for part in parts if part.tier == PEER} <= {taken.handoff_peer}
            if name in failed:
                left = [
                    part for part in computed if (part.cause, part.tokens) != (Cause.UNALIGNED, 1)
                ]  # the last token
                assert {(part.cause, part.tier) for part in left} == {(Cause.FAILED_LOAD, PEER)}, (seed, name)
            else:
                assert sum(part.tokens for part in computed) == 1, (seed, name, computed)
    assert causes[Cause.FAILED_LOAD] > 30
    assert causes[Cause.LAST_TOKEN] > 5


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=LONG)], ids=str)
def test_what_the_guard_refused_is_refused_as_far_as_it_was_handed_over(seeds: range) -> None:
    refused: Counter[str] = Counter()
    for seed in seeds:
        scenario = replace(drawn(seed, mistakes=(Mistake.EXCHANGED,)), recompute=True)
        pair = play_pair_once(scenario, HEALED)
        for name, (taken, parts) in of_takers(pair).items():
            guarded = [part for part in parts if part.detail.refusal == "guarded"]
            assert bool(guarded) <= (pair.names[name] in pair.planted), (seed, name)
            for part in guarded:
                assert (part.cause, part.tier, part.detail.engine) == (Cause.REFUSED, PEER, taken.handoff_peer)
                last = (taken.prompt or 0) - 1  # computed in any case
                assert min(part.end, last) <= (taken.handoff_tokens or 0), (seed, name, parts)
                refused[name] += part.tokens
            if guarded:
                for part in parts:
                    is_beyond = part.start >= (taken.handoff_tokens or 0) // 32 * 32
                    assert part.detail.refusal != "not-handed" or is_beyond, (seed, name, parts)
    assert len(refused) >= len(seeds)
