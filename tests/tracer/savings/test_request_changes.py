"""What changed for single requests."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.savings.request_changes import Observed, length_class, of_account, of_lane, request_changes


def seen(engine: str, duration_s: float, prompt: str = "0-1024") -> Observed:
    return Observed({"engine": engine, "prompt": prompt}, {"duration_s": duration_s})


def test_the_groups_of_a_dimension_add_up_to_the_change_of_the_mean() -> None:
    before = [seen("a", 1), seen("a", 1), seen("b", 4, "1024-4096")]
    after = [seen("a", 1), seen("b", 4, "1024-4096"), seen("b", 7, "4096-16384")]
    (change,) = request_changes(before, after)
    assert (change.measure, change.whole.before, change.whole.after) == ("duration_s", 2, 4)
    for dimension in ("engine", "prompt"):
        assert sum(each.share for each in change.groups if each.dimension == dimension) == pytest.approx(1)
    engines = {each.group: each for each in change.groups if each.dimension == "engine"}
    assert engines["b"].amount.after == pytest.approx(11 / 3)
    assert engines["b"].share == pytest.approx((11 / 3 - 4 / 3) / 2)
    assert change.groups[0].group in ("b", "4096-16384"), "the largest share is first"


def test_what_is_known_on_one_side_only_is_not_compared() -> None:
    assert request_changes([seen("a", 1)], []) == []
    assert request_changes([seen("a", 1)], [Observed({"engine": "a"}, {"wait_s": 3.0})]) == []
    assert request_changes([seen("a", 2)], [seen("a", 2)]) == []


def test_a_request_by_its_account() -> None:
    account: dict[str, Any] = {
        "engine": "a", "connector": "C", "prompt": 2000, "waited_ns": 5 * 10**8, "started_ns": 10**9, "ended_ns": 3 * 10**9,
        "prefix": "1a2b",
    }  # fmt: skip
    found = of_account(account, "m")
    assert found.seconds == {"wait_s": 0.5, "duration_s": 2.0}
    assert found.groups == {"engine": "a", "model": "m", "connector": "C", "prompt": "1024-4096", "prefix": "1a2b"}
    assert "duration_s" not in of_account({**account, "ended_ns": None}, "m").seconds


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ((Phase.QUEUED, 0, Phase.LOOKUP, 500_000, Phase.PREFILL, 10**6, Phase.DECODE, 3 * 10**6), (1.0, 3.0)),
        ((Phase.QUEUED, 0, Phase.WAITING, 10**6, Phase.RUNNING, 2 * 10**6), (2.0, None)),
        ((Phase.QUEUED, 0, Phase.FAILED, 10**6), (None, None)),
        ((Phase.QUEUED, 0), (None, None)),
    ],
    ids=["detailed", "basic", "failed", "queued"],
)
def test_a_request_by_its_phases(changes: tuple[int, ...], seconds: tuple[float | None, float | None]) -> None:
    lane = Lane(
        request="r", engine="a", external="", connector="C", status="", verdict="", findings=0, complete=True, started_ns=0,
        last_ns=0, ended_ns=None, changes=changes, transfers=(),
    )  # fmt: skip
    found = of_lane(lane, "m").seconds
    assert (found.get("queue_s"), found.get("first_token_s")) == seconds


def test_classes_of_prompts() -> None:
    found = [length_class(tokens) for tokens in (None, 0, 1023, 1024, 65_536)]
    assert found == ["", "0-1024", "0-1024", "1024-4096", "65536-"]
