"""What people read of a part of a prompt."""

from __future__ import annotations

import pytest

from kvtrail.tracer.model.cause_words import sentence
from kvtrail.tracer.model.causes import Cause, Untold

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
        ({"cause": "pending", "tier": "", "request": "chat-8"}, "in the prompt of chat-8, not done with it yet"),
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
        ({"cause": "pending", "tier": "store"}, "on its way into the connector's store"),
        ({"cause": "elsewhere", "tier": "", "engine": "pod-3"}, "computed by pod-3, and never by this one"),
        ({"cause": "unknown", "tier": "", "why": "lost"}, "not known: events are missing that may have told it"),
        ({"cause": "unknown", "tier": ""}, "not known"),
        ({"cause": "of-tomorrow", "tier": ""}, "of tomorrow"),
    ],
)
def test_a_part_is_a_sentence(part: dict[str, object], said: str) -> None:
    assert sentence({"start": 0, "tokens": 16, **part}, at_ns=NOW_NS) == said


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words(cause: Cause) -> None:
    assert sentence({"cause": cause.value, "tier": "cpu"}, at_ns=NOW_NS) != cause.value


@pytest.mark.parametrize("why", Untold)
def test_what_is_unknown_says_what_would_tell(why: Untold) -> None:
    said = sentence({"cause": "unknown", "tier": "", "why": why.value}, at_ns=NOW_NS)
    assert said.startswith("not known: ")
    assert said != f"not known: {why.value}"


def test_clocks_that_disagree_give_no_negative_time() -> None:
    assert "0 µs before" in sentence({"cause": "reset", "tier": "cpu", "at_ns": NOW_NS + 5}, at_ns=NOW_NS)
