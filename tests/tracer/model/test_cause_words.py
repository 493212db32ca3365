"""The words for a part of a prompt, and parts joined to runs."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.tracer.model.cause_words import headline, named_sentence, runs, sentence
from kvtrail.tracer.model.causes import Cause, NotRecorded

NOW_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"cause": "loaded", "tier": "cpu"}, "loaded from cpu"),
        ({"cause": "stranded", "tier": "gpu"}, "held by vLLM's cache, but not all that comes before it"),
        (
            {"cause": "evicted", "tier": "cpu", "at_ns": NOW_NS - 12 * 10**9, "request": "chat-9"},
            "evicted from cpu 12.00 s before, to make room for chat-9",
        ),
        (
            {"cause": "evicted", "tier": "gpu", "at_ns": NOW_NS - 5 * 10**6, "unstored": "full"},
            "evicted from vLLM's cache 5 ms before; the connector's store never had it: there was no room for it",
        ),
        (
            {"cause": "pending", "tier": "", "request": "chat-8"},
            "in the prompt of chat-8, which has not computed it yet",
        ),
        (
            {
                "cause": "evicted",
                "tier": "cpu",
                "at_ns": NOW_NS - 12 * 10**9,
                "to_ns": NOW_NS - 9 * 10**9,
                "request": "chat-9",
                "others": 3,
            },
            "evicted from cpu 9.00 s to 12.00 s before, to make room for chat-9 and 3 others",
        ),
        (
            {"cause": "evicted", "tier": "gpu", "group": 0, "group_kind": "sliding_window", "request": "chat-9"},
            "evicted from KV cache group 0 (sliding window) of vLLM's cache, to make room for chat-9",
        ),
        (
            {"cause": "uncached", "tier": "gpu", "group": 1, "group_kind": "mamba"},
            "computed before, but KV cache group 1 (mamba) never had its part of it in vLLM's cache",
        ),
        ({"cause": "pending", "tier": "store"}, "on its way into the connector's store"),
        ({"cause": "elsewhere", "tier": "", "engine": "pod-3"}, "computed by pod-3, never by this one"),
        (
            {"cause": "elsewhere", "tier": "", "engine": "pod-3", "refusal": "not-handed"},
            "computed by pod-3, never by this one, and not handed over to this request",
        ),
        ({"cause": "loaded", "tier": "p2p", "engine": "pod-3"}, "handed over by pod-3, and loaded"),
        (
            {"cause": "last-token", "tier": "p2p"},
            "handed over by another engine, and recomputed: the last token always is, for its logits",
        ),
        (
            {"cause": "refused", "tier": "p2p", "engine": "pod-3", "refusal": "guarded"},
            "handed over by pod-3, and the guard took the connector's offer back",
        ),
        ({"cause": "failed-load", "tier": "p2p", "engine": "pod-3"}, "handed over by pod-3, and its load failed"),
        ({"cause": "failed-load", "tier": "cpu"}, "promised by cpu, and its load failed"),
        ({"cause": "unknown", "tier": "", "why": "lost"}, "not known: events are missing that may show it"),
        ({"cause": "unknown", "tier": ""}, "not known"),
        ({"cause": "of-tomorrow", "tier": ""}, "of tomorrow"),
    ],
)
def test_a_part_is_a_sentence(part: dict[str, object], said: str) -> None:
    assert sentence({"start": 0, "tokens": 16, **part}, at_ns=NOW_NS) == said


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words(cause: Cause) -> None:
    assert sentence({"cause": cause.value, "tier": "cpu"}, at_ns=NOW_NS) != cause.value


@pytest.mark.parametrize("why", NotRecorded)
def test_every_unknown_cause_has_a_reason(why: NotRecorded) -> None:
    said = sentence({"cause": "unknown", "tier": "", "why": why.value}, at_ns=NOW_NS)
    assert said.startswith("not known: ")
    assert named_sentence({"cause": "unknown", "tier": "", "why": why.value}, at_ns=NOW_NS) == said, "it says so once"
    assert said != f"not known: {why.value}"


def test_clocks_that_disagree_give_no_negative_time() -> None:
    assert "0 µs before" in sentence({"cause": "reset", "tier": "cpu", "at_ns": NOW_NS + 5}, at_ns=NOW_NS)


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


def test_where_there_are_many_they_are_joined_across_requests() -> None:
    first, *rest = runs(PARTS, few=3)
    assert (first["tokens"], first["request"], first["others"], first["at_ns"], first["to_ns"]) == (48, "a", 1, 7, 9)
    assert [run["start"] for run in rest] == [48, 64]


def test_the_runs_partition_the_prompt() -> None:
    for few in range(6):
        assert sum(run["tokens"] for run in runs(PARTS, few=few)) == 72


def test_a_prompt_without_parts_has_none() -> None:
    assert runs([]) == []


def test_the_headline_says_which_groups_lacked_their_part() -> None:
    parts = [
        {"cause": "held", "tokens": 64},
        {"cause": "evicted", "tokens": 32, "group": 0, "group_kind": "full_attention"},
        {"cause": "evicted", "tokens": 64, "group": 1, "group_kind": "sliding_window"},
    ]
    assert headline({"total": 160, "parts": parts}) == (
        "96 tokens of 160 were computed: 100 % evicted. KV cache group 1 (sliding window) lacked 64 of them; KV cache group 0"
        " (full attention) lacked 32 of them."
    )
