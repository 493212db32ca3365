"""What rules may rely on in a connector's spans: declared by its recorder, or known by its name."""

from __future__ import annotations

import pytest

from kvtrail.tracer.events.capabilities import Capability, declaration, of_connector

STORES, EXCLUSIVE = Capability.REPORTS_ALL_STORES, Capability.EXCLUSIVE_TRANSFERS


def test_a_declaration_counts_for_the_connectors_that_it_names() -> None:
    declared = declaration({"Mine": [STORES, EXCLUSIVE], "Other": []})
    assert declared == '{"Mine":["exclusive_transfers","reports_all_stores"],"Other":[]}'
    assert of_connector("Mine", declared) == {STORES, EXCLUSIVE}
    assert of_connector("Other", declared) == set()
    assert of_connector("LMCacheConnectorV1", declared) == set()


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("OffloadConnector", {STORES}),
        ("LMCacheConnectorV1", {STORES}),
        ("LMCacheMPConnector", {STORES}),
        ("OffloadingConnector", {EXCLUSIVE, Capability.EVICTS_ANY}),
        ("NixlConnector", {Capability.HANDS_ON, Capability.RECEIVES_ONCE}),
        ("SimpleCPUOffloadConnector", set()),
        ("", set()),
    ],
)
def test_older_traces_are_known_by_name(name: str, capabilities: set[Capability]) -> None:
    assert of_connector(name, None) == capabilities


@pytest.mark.parametrize("declared", ["", "7", "[]", "{", '{"Mine": 7}', '{"Mine": "x"}', "[" * 100_000])
def test_what_is_no_declaration_declares_nothing(declared: str) -> None:
    assert of_connector("Mine", declared) == set()


def test_a_newer_capability_is_passed_over() -> None:
    assert of_connector("Mine", '{"Mine": ["dreams", "reports_all_stores", {}]}') >= {STORES}
