"""The list of requests: what is chosen is asked for as the api has it."""

from __future__ import annotations

import pytest

from kvtrail.dashboard.content.requests import filters, filters_of_groups


@pytest.mark.parametrize(
    ("word", "asked"),
    [
        ("lost", {"outcome": "lost"}),
        ("finished", {"outcome": "finished"}),
        ("failed", {"outcome": "failed"}),
        ("preempted", {"status": "preempted", "outcome": "running"}),
        ("running", {"status": "running", "outcome": "running"}),
    ],
)
def test_a_status_is_the_place_or_the_outcome_of_a_request(word: str, asked: dict[str, str]) -> None:
    """A request that was preempted when its engine died is lost, and not preempted."""
    assert filters({"status": word, "engine": "a"}) == {"engine": "a", **asked}


def test_nothing_chosen_is_nothing_asked() -> None:
    assert filters({}) == {}
    assert filters({"verdict": "drift"}) == {"verdict": "drift"}


def test_groups_and_times_are_filtered_by_the_outcome_and_not_by_what_changes() -> None:
    assert filters_of_groups({"status": "lost", "engine": "a"}) == ({"outcome": "lost", "engine": "a"}, [])
    assert filters_of_groups({"status": "preempted", "verdict": "drift", "where": "new > 5"}) == (
        {"where": "new > 5"}, ["status", "verdict"],
    )  # fmt: skip
    assert filters_of_groups({}, "chat-7") == ({}, ["search"])
