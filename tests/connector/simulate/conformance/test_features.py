"""A connector claims what it defines or declares, and nothing that it inherits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from faulty_pairs import drawn

from kvtrail.connector.known import overrides
from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.features import Feature
from kvtrail.connector.simulate.scenario import Arrival, Scenario, Workers
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup

pytest.importorskip("vllm")

from silent import FindsNothing
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

ONE = (Arrival("r", (("p", 40),)),)


class Bare(FindsNothing):
    """Nothing but what vLLM's base class demands; there are several ways to write a method that does nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything is loaded at once."""
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass


class Reports(Bare):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()


class ReportsToo(Reports):
    """It inherits from a connector, and not from vLLM."""


class Hybrid(Bare, SupportsHMA):
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return False, None


class ByLayer(Bare):
    def wait_for_layer_load(self, layer_name: str) -> None:
        self.waited = layer_name


class SaysWhen(ByLayer):
    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(extra_config.get("layerwise"))


class Declares(Bare):
    kvtrail_features = ("asynchronous loads",)


class Events(Bare):
    def take_events(self) -> Any:
        return ()


def claimed(cls: type, extra: dict[str, Any] | None = None) -> list[Feature]:
    return features.claimed(f"{__name__}:{cls.__name__}", extra or {})


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Bare, []),
        (Reports, [Feature.FAILURES]),
        (ReportsToo, [Feature.FAILURES]),
        (Hybrid, [Feature.GROUPS]),
        (ByLayer, [Feature.LAYERS]),
        (SaysWhen, []),
        (Declares, [Feature.ASYNC_LOADS]),
        (Events, [Feature.EVENTS]),
    ],
)
def test_claims(cls: type, expected: list[Feature]) -> None:
    assert claimed(cls) == expected


def test_layer_by_layer_may_depend_on_the_settings() -> None:
    assert claimed(SaysWhen, {"layerwise": True}) == [Feature.LAYERS]


def test_no_connector_claims_what_it_inherits() -> None:
    """Two bound class methods are never the same object: each connector would claim them."""
    for method in ("requires_piecewise_for_cudagraph", "get_finished", "take_events", "reset_cache"):
        assert not overrides(Bare, method)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OffloadConnector", [Feature.FAILURES, Feature.GROUPS, Feature.PROBE]),
        ("Faulty:blocks-exchanged:OffloadConnector", [Feature.FAILURES, Feature.GROUPS, Feature.PROBE]),
        ("ExampleConnector", [Feature.LAYERS]),
        ("NixlPushConnector", [Feature.FAILURES, Feature.GROUPS, Feature.PUSH, Feature.PROBE]),
        ("NixlConnector", [Feature.FAILURES, Feature.GROUPS, Feature.PULL, Feature.PROBE]),
    ],
)
def test_what_known_connectors_claim(name: str, expected: list[Feature]) -> None:
    assert features.claimed(name, {}) == expected


def test_a_connector_of_connectors_claims_what_they_claim() -> None:
    children = [{"kv_connector": "ExampleConnector"}, {"kv_connector": f"Traced:{__name__}:Reports"}]
    assert features.claimed("MultiConnector", {"connectors": children}) == [Feature.FAILURES, Feature.LAYERS]


def test_features_that_were_seen() -> None:
    assert features.detected(Counter({"lookup/hit": 3, "lookup/async": 1, "ranks/hit": 2})) == [
        Feature.ASYNC_LOADS,
        Feature.RANKS,
    ]


def test_the_world_of_a_scenario() -> None:
    groups = (CacheGroup(FULL), CacheGroup(SLIDING, window=64))
    assert features.worlds(Scenario(arrivals=ONE), []) == frozenset()
    assert features.worlds(Scenario(arrivals=ONE, groups=groups), []) == {Feature.GROUPS}
    assert features.worlds(Scenario(arrivals=ONE, workers=Workers(load_failures=0.5)), []) == {Feature.FAILURES}
    assert features.worlds(Scenario(arrivals=ONE, settings={"tensor_parallel_size": 2}), []) == {Feature.RANKS}
    assert features.worlds(drawn(0, failing=0.0), [Feature.PUSH, Feature.PROBE]) == {Feature.PUSH}
    handed_on = Scenario(arrivals=(Arrival("r", (("p", 40),), handed_on=True),))
    assert features.worlds(handed_on, [Feature.PULL]) == {Feature.PULL}
