"""What a workload has besides its requests is said in words."""

from __future__ import annotations

import pytest

from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.conformance.circumstances import circumstances
from kvtrail.connector.simulate.scenario import Abort, Arrival, CachesReset, Scenario, When, Workers
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup


def test_all_that_differs_from_the_defaults_is_said() -> None:
    scenario = Scenario(
        arrivals=(Arrival("r-0", (("p", 40),)),),
        aborts=(Abort("r-0", 12), Abort("r-1", 3, When.LOADING)),
        resets=(
            CachesReset(7, running=True, connector=True),
            CachesReset(9, prefix_cache=False, connector=True),
            CachesReset(11, when=When.MATCHED),
        ),
        num_blocks=1000,
        drafts=1,
        groups=(CacheGroup(FULL), CacheGroup(SLIDING, window=100)),
        settings={"max_num_batched_tokens": 48},
        workers=Workers(latest_steps=1, load_failures=0.3, fails=(("r-0/0", 2),)),
        recompute=False,
    )
    assert list(circumstances(scenario)) == [
        "1,000 KV blocks of 32 tokens, the null block included.",
        "KV cache groups: full_attention, sliding_window of 100 tokens.",
        "vLLM's settings: max_num_batched_tokens=48.",
        "Each step drafts 1 speculative token; a random part of them is rejected.",
        "A request with a load that failed ends (kv_load_failure_policy=fail).",
        "r-0 is aborted before step 12.",
        "r-1 is aborted as soon as it loads, from step 3 on.",
        "Somebody resets vLLM's prefix cache and the connector's cache before step 7, and preempts running requests for it.",
        "Somebody resets the connector's cache before step 9.",
        "Somebody resets vLLM's prefix cache as soon as some request waits and has matched, from step 11 on.",
        "Transfers between steps end within 1 step, in any order.",
        "Of the loads 30 % fail, as a random number has it.",
        "Load 1 of r-0 fails from its block 2 on.",
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_kind_of_workload_can_be_said(profile: str) -> None:
    scenario = scenario_of(profile, 0)
    said = list(circumstances(Scenario.from_dict(scenario.as_dict())))
    assert said == list(circumstances(scenario))
    assert len(said) >= 2 + len(scenario.aborts) + len(scenario.resets)
