"""The page of a request that was open when its engine ended names that end and leads to it."""

from __future__ import annotations

from typing import Any

import pytest
from history import START_NS

from kvtrail.dashboard.content.request import account

MINUTE_NS = 60 * 10**9


def marker(kind: str, text: str, *, minute: int, engine: str = "a-1") -> dict[str, Any]:
    return {
        "kind": kind, "at_ns": START_NS + minute * MINUTE_NS, "engine": engine, "engine_name": engine and "alpha",
        "text": text, "count": 1,
    }  # fmt: skip


def request(outcome: str) -> dict[str, Any]:
    return {"engine": "a-1", "started_ns": START_NS, "outcome": outcome}


MARKED = [
    marker("reset", "reset it", minute=1, engine=""),
    marker("deploy", "was started", minute=1),
    marker("death", "died of KeyError: 7 with 3 open requests", minute=2),
    marker("deploy", "was started again", minute=3),
    marker("death", "was killed with 1 open request", minute=4),
]


@pytest.mark.parametrize("outcome", ["finished", "aborted", "failed", "running"])
def test_a_request_that_no_end_cut_off_asks_for_none(outcome: str) -> None:
    assert account.end_asked(request(outcome), now_ns=START_NS) is None


@pytest.mark.parametrize("outcome", ["lost", "unheard"])
def test_one_that_was_open_then_asks_for_the_ends_since_it_began(outcome: str) -> None:
    asked = {"engine": "a-1", "since_ns": START_NS, "until_ns": START_NS + MINUTE_NS}
    assert account.end_asked(request(outcome), now_ns=START_NS + MINUTE_NS) == asked


def test_the_first_end_is_named_and_linked() -> None:
    """The same engine was launched again, and died again."""
    end = account.end_found(request("lost"), MARKED)
    assert end is MARKED[2]
    said = account.end_sentence(end, now_ns=START_NS + 5 * MINUTE_NS)
    assert said.endswith(" UTC, engine alpha died of KeyError: 7 with 3 open requests.")
    page, query = account.end_link(end)
    assert page == "overview"
    assert query.keys() == {"from", "to"}


def test_an_end_that_is_not_known_is_none() -> None:
    assert account.end_found(request("lost"), MARKED[:2]) is None
