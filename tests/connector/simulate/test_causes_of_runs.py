"""Why tokens were no hits, against a reference that sees every block of vLLM's pool and of the connector's store
(`benchmarks/causes.py` has more of it)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from causes_reference import UNTOLD, Tally, admissions_of, compare, missed, run, untold_of

from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.scenario import Scenario

PROFILES = ("mixed", "full-store", "load-failure", "preemption-storm", "async")
SEEDS = range(3)
RIGHT = 0.99
"""The share of what was missed whose cause must be known where all is told."""
ARISE = {
    "OffloadConnector": (
        "evicted gpu",
        "evicted store",
        "reset gpu",
        "last-token gpu",
        "pending gpu",
        "failed-load store",
    ),
    "OffloadingConnector": ("last-token gpu", "new", "unaligned"),
}


def scenarios() -> Iterator[Scenario]:
    for seed in SEEDS:
        for profile in PROFILES:
            yield scenario_of(profile, seed)
        several = scenario_of("chunked-prefill", seed)  # prefills that go on side by side
        arrivals = tuple(replace(each, at_step=each.at_step // 8) for each in several.arrivals)
        slowly = {**several.settings, "long_prefill_token_threshold": 32, "max_num_batched_tokens": 256}
        yield replace(several, arrivals=arrivals, settings=slowly, num_blocks=300)


@pytest.mark.parametrize("connector", sorted(ARISE))
def test_causes_are_those_that_the_caches_show(connector: str) -> None:
    played = [run(scenario, connector, seed=seed) for seed, scenario in enumerate(scenarios())]
    said: dict[str, Tally] = {}
    for untold in UNTOLD:
        said[untold] = Counter()
        for number, (admissions, events) in enumerate(played):
            told = admissions_of(untold_of(events, untold, random.Random(number)))
            said[untold] += compare(admissions, told)
        shares, wrong = missed(said[untold])
        assert shares["wrong"] <= 0.001 * shares.total(), (untold, wrong)
        assert shares.total() > 50_000, untold
    shares, _ = missed(said["nothing"])
    assert shares["right"] >= RIGHT * shares.total(), shares
    for cause in ARISE[connector]:
        assert said["nothing"][cause, "right"], cause
