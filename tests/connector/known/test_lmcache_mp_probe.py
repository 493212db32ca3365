"""The probe for LMCache in a process of its own, against the metadata of its connectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.known.lmcache_mp.probe import LMCacheMPProbe
from kvtrail.connector.known.probe import Planned, Seen


def plan(*requests: Any) -> Any:
    return SimpleNamespace(requests=list(requests))


def a_request(direction: str, start: int, end: int, blocks: list[Any]) -> Any:
    op = SimpleNamespace(start=start, end=end, block_ids=blocks)
    return SimpleNamespace(request_id="r", direction=direction, op=op)


def test_plans_are_reported_as_they_are() -> None:
    """Also with fewer blocks than tokens, or with an end before the beginning."""
    metadata = plan(
        a_request("RETRIEVE", 0, 256, [1, 2, 3, 4, 5, 6, 7, 8]),
        a_request("RETRIEVE", 512, 256, []),
        a_request("STORE", 256, 512, [9, 10]),
        a_request("STORE", 0, 256, [[1, 2], [3, 4]]),
    )
    assert LMCacheMPProbe().stepped(None, metadata) == Seen(
        loads=[Planned("r", 0, 256, (1, 2, 3, 4, 5, 6, 7, 8)), Planned("r", 512, 0, ())],
        stores=[Planned("r", 256, 256, (9, 10)), Planned("r", 0, 256, None)],
    )


def test_another_layout_shows_nothing_but_what_fitted_before_is_not_left_out_in_silence() -> None:
    probe, foreign = LMCacheMPProbe(), plan(SimpleNamespace(name="r"))
    assert probe.stepped(None, foreign) is None
    assert probe.stepped(None, plan(a_request("STORE", 0, 32, [1]))) is not None
    with pytest.raises(AttributeError):
        probe.stepped(None, foreign)
