"""A store with a tier on disk, which answers lookups later while it fetches, and keeps blocks for its stores."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.check.trial import run

NAME = "planted.tiered_store:TieredConnector"
TINY: dict[str, Any] = {"chunk_blocks": 2, "ram_chunks": 4, "disk_chunks": 32, "prefetch_chunks": 3}
LARGE = TINY | {"ram_chunks": 64, "disk_chunks": 256, "prefetch_chunks": 16}


def found(name: str, profile: str, seed: int, config: dict[str, Any]) -> set[str]:
    tested = ConnectorUnderTest(name, config, own_workers=True)
    return {failure.what for failure in run(tested, scenario_of(profile, seed))[1]}


@pytest.mark.parametrize(
    ("profile", "seed", "config"),
    [
        ("abort", 1, TINY),
        ("full-store", 1, LARGE),
        ("mixed", 2, TINY | {"chunk_blocks": 4, "prefetch_chunks": 16}),
        ("no-prefix-caching", 1, TINY),
        ("failed-requests", 0, LARGE),
        ("combined", 1, LARGE | {"chunk_blocks": 4, "disk_chunks": 32}),  # it is preempted by a reset, and then aborted
    ],
)
def test_the_correct_store_is_clean(profile: str, seed: int, config: dict[str, Any]) -> None:
    assert found(NAME, profile, seed, config) == set()


def test_what_vllm_keeps_of_a_failed_load_is_not_the_connectors_fault() -> None:
    """The reset that would have emptied vLLM's cache waits for the store of the request that was aborted, and the next one
    finds there what was computed of the failed load."""
    slow = {"chunk_blocks": 4, "ram_chunks": 4, "disk_chunks": 256, "prefetch_chunks": 0}
    assert found(NAME, "load-failure", 1000, slow) == set()


@pytest.mark.parametrize(
    ("bug", "profile", "seed", "config", "what"),
    [
        ("AbortedPrefetchKeepsItsPins", "abort", 1, TINY, "AbortedPrefetchKeepsItsPins.index.pins is not as it was"),
        ("StoresOfTheFailedStepKept", "failed-requests", 0, LARGE, "tokens that nobody has computed"),
        (
            "OldTableAppended",
            "mixed",
            4,
            TINY | {"ram_chunks": 16, "prefetch_chunks": 0},
            "a request has read KV that is not its own",
        ),
    ],
)
def test_what_comes_together_wrongly_is_found(
    bug: str, profile: str, seed: int, config: dict[str, Any], what: str
) -> None:
    assert what in found(f"planted.tiered_bugs:{bug}", profile, seed, config)


def test_a_connector_that_never_answers_is_found_in_its_first_run() -> None:
    of = check(
        "planted.tiered_bugs:PrefetchNotTriedAgain", profiles=["chunked-prefill"], steps=None, runs=1, shrink_tries=0
    )
    assert {each.failure.what for each in of.found} == {"endless-deferral"}
    assert of.found[0].after == of.steps.total()
