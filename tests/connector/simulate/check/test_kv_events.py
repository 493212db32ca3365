"""A connector's KV cache events are judged as a router lives by them."""

from __future__ import annotations

import pytest

from kvtrail.connector.simulate.check.session import Checked, check


def checked(connector: str, runs: int = 3) -> Checked:
    return check(connector, profiles=["kv-events"], steps=None, runs=runs, shrink_tries=0)


@pytest.mark.parametrize("connector", ["planted.reporting:Reporting", "SimpleCPUOffloadConnector"])
def test_true_events_are_silent(connector: str) -> None:
    result = checked(connector)
    assert [found.failure.text for found in result.found] == []
    assert all(result.reached[f"events/{what}"] for what in ("stored", "removed", "found"))


@pytest.mark.parametrize(
    ("bug", "what"),
    [
        ("EvictionNotReported", "a block that events have stored is not found"),
        ("StoreNotReported", "a block that events have removed is found"),
        ("ReportedTooEarly", "an event stores what nobody has computed"),
        ("RemovedElsewhere", "an event removes what none has stored"),
    ],
)
def test_each_wrong_event_is_found(bug: str, what: str) -> None:
    result = checked(f"planted.reporting:{bug}")
    assert f"kv-events: {what}" in [found.failure.id for found in result.found]


def test_a_connector_without_events_is_not_judged_by_them() -> None:
    result = checked("planted.chunk_store:ChunkStore", runs=1)
    assert (result.found, result.reached["events/stored"], result.reached["events/found"]) == ([], 0, 0)
