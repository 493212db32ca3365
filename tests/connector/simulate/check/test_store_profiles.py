"""The profiles of what a store holds reach what they are for."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted.store_bugs import STORE_BUGS

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.connector_under_test import in_turn, varied
from kvtrail.connector.simulate.check.profiles import LONGEST, scenario_of
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import tokens
from kvtrail.tracer.events.events import Preempt

QUICK = {
    "ComputedNotSubtracted": "chunked-prefill",
    "StoredBeforeComputed": "chunked-prefill",
    "SlotLostByTwins": "room",
}
"""Bugs, each with a profile that shows it within three runs."""
MISSED = {
    "MarkMovedByRefusedStore": "a chunk behind a missing one takes a slot until its eviction, and no answer is wrong"
}
"""Why a session does not find a bug."""


def test_a_known_connectors_store_is_small_where_it_is_to_be_full() -> None:
    for seed in range(20):
        plain = varied("OffloadConnector", in_turn("room", seed))
        full = varied("OffloadConnector", in_turn("room", seed), full=True)
        assert full.pop("cpu_bytes_to_use") <= 1_200_000 < plain.pop("cpu_bytes_to_use")
        assert full == plain, "nothing else is chosen in another way"


def test_a_full_store_evicts_and_still_hits() -> None:
    connector = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": 600_000})
    played = play(scenario_of("room", 0), connector, own_workers=True, observed=True)
    assert (played.error, played.observations, played.findings) == (None, [], [])
    assert sum(event.kind == "kv.evict" for event in played.events) > 20
    assert sum(bool(lookup.answer) for lookup in played.lookups) > 10


def test_short_prompts_share_nothing() -> None:
    prompts = [tokens(each.prompt) for each in scenario_of("many-prefixes", 0).arrivals]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == len(prompts) == 700


def test_a_turn_extends_the_last_one_and_its_answer_and_some_answers_are_preempted() -> None:
    preempted = 0
    for seed in range(2):
        scenario = scenario_of("conversation", seed)
        of = {each.id: each for each in scenario.arrivals}
        for arrival in scenario.arrivals:
            assert arrival.length + arrival.max_tokens <= LONGEST
            talk, turn = arrival.id.rsplit("-", 1)
            if turn != "0":
                last = of[f"{talk}-{int(turn) - 1}"]
                assert arrival.prompt[: len(last.prompt) + 1] == (*last.prompt, *last.output)
        connector = configuration("OffloadConnector", {"chunk_size": 32})
        preempted += sum(isinstance(event, Preempt) for event in play(scenario, connector).events)
    assert preempted > 5


@pytest.mark.parametrize(("bug", "profile"), QUICK.items())
def test_a_bug_of_a_small_store_is_found(bug: str, profile: str) -> None:
    checked = check(
        f"planted.store_bugs:{bug}", steps=None, runs=3, profiles=[profile], shrink_tries=0, stop_at_first=True
    )
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in STORE_BUGS if name not in MISSED])
def test_every_bug_of_a_small_store_is_found(bug: str) -> None:
    checked = check(f"planted.store_bugs:{bug}", steps=20_000, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


def test_the_small_store_without_a_bug_is_clean() -> None:
    checked = check(
        "planted.chunk_store:ChunkStore", steps=None, runs=2, profiles=["room", "conversation"], shrink_tries=0
    )
    assert [found.failure for found in checked.found] == []
