"""Parts of a prompt put together."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.model.cause_runs import runs


def evicted(start: int, *, by: str, at_ns: int, tier: str = "cpu") -> dict[str, Any]:
    return {
        "cause": "evicted",
        "tier": tier,
        "start": start,
        "tokens": 16,
        "request": by,
        "at_ns": at_ns,
        "span_id": "s",
    }


PARTS = [
    evicted(0, by="a", at_ns=9), evicted(16, by="a", at_ns=7), evicted(32, by="b", at_ns=7),
    evicted(48, by="b", at_ns=7, tier="gpu"), {"cause": "new", "tier": "", "start": 64, "tokens": 8},
]  # fmt: skip


def test_neighbours_that_one_sentence_explains_are_one_run() -> None:
    found = runs(PARTS)
    assert [(run["start"], run["tokens"], run["tier"], run.get("request")) for run in found] == [
        (0, 32, "cpu", "a"), (32, 16, "cpu", "b"), (48, 16, "gpu", "b"), (64, 8, "", None),
    ]  # fmt: skip
    assert [(run.get("at_ns"), run.get("to_ns")) for run in found] == [(7, 9), (7, None), (7, None), (None, None)]


def test_of_many_it_is_not_told_who_did_each() -> None:
    first, *rest = runs(PARTS, few=3)
    assert (first["tokens"], first["request"], first["others"], first["at_ns"], first["to_ns"]) == (48, "a", 1, 7, 9)
    assert [run["start"] for run in rest] == [48, 64]


def test_the_runs_make_up_the_prompt() -> None:
    for few in range(6):
        assert sum(run["tokens"] for run in runs(PARTS, few=few)) == 72


def test_a_prompt_without_parts_has_none() -> None:
    assert runs([]) == []
