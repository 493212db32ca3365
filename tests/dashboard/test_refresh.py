"""How often a page asks again: what is over costs nothing, and what can still change is not missed."""

from __future__ import annotations

import pytest

from kvtrail.dashboard.content.refresh import EVERY_S, RARELY_S, SLOW_S, of_range, of_requests, soonest
from kvtrail.dashboard.content.time_range import TimeRange

S = 10**9
NOW_NS = 1_795_000_000 * S


def request(outcome: str, *, ago_s: int) -> dict[str, object]:
    return {"outcome": outcome, "last_ns": NOW_NS - ago_s * S}


@pytest.mark.parametrize(
    ("ago_s", "again_s"), [(0, EVERY_S), (59, EVERY_S), (61, RARELY_S), (600, RARELY_S), (661, None), (86_400, None)]
)
@pytest.mark.parametrize("outcome", ["finished", "aborted", "failed", "lost"])
def test_what_has_ended_is_asked_about_until_no_rule_waits(outcome: str, ago_s: int, again_s: float | None) -> None:
    assert of_requests([request(outcome, ago_s=ago_s)], now_ns=NOW_NS) == again_s
    ended = NOW_NS - ago_s * S
    assert of_range(TimeRange(ended - 60 * S, ended), now_ns=NOW_NS) == again_s


@pytest.mark.parametrize("outcome", ["running", "unheard", "a word of a newer tracer"])
def test_what_has_not_ended_is_asked_about_as_long_as_it_lasts(outcome: str) -> None:
    over = request("finished", ago_s=86_400)
    assert of_requests([over, request(outcome, ago_s=86_400)], now_ns=NOW_NS) == EVERY_S


def test_the_latest_of_several_requests_decides() -> None:
    requests = [request("finished", ago_s=ago_s) for ago_s in (86_400, 100, 5000)]
    assert of_requests(requests, now_ns=NOW_NS) == RARELY_S


def test_a_range_that_moves_is_never_over() -> None:
    moving = TimeRange(NOW_NS - 7200 * S, NOW_NS - 3600 * S, "now-2h to now-1h")
    assert of_range(moving, now_ns=NOW_NS, every_s=SLOW_S) == SLOW_S
    assert of_range(moving.fixed, now_ns=NOW_NS, every_s=SLOW_S) is None


def test_the_soonest_decides() -> None:
    assert soonest(None, RARELY_S, EVERY_S) == EVERY_S
    assert soonest(None, None) is None
