"""Events and numbers in words, as audit and dashboard both say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Unknown

DOCS = Path(__file__).parents[3] / "docs"


def test_every_kind_has_a_name_of_its_own() -> None:
    names = [words.kind(kind) for kind in Kind]
    assert len(set(names)) == len(names)
    assert not any(name.startswith("kv.") for name in names)
    assert words.kind("llm_request") == "llm_request"


@pytest.mark.parametrize(
    ("kind", "numbers", "said"),
    [
        ("kv.load.plan", {"start": 256, "count": 256, "transfer_id": 3}, "256 tokens (256 to 512) to be loaded, transfer 3"),
        ("kv.store.plan", {"start": 0, "count": 1}, "1 token (0 to 1) to be stored"),
        ("kv.store.plan", {"count": 32, "transfer_id": 5}, "32 tokens to be stored, transfer 5"),
        ("kv.load.plan", {"count": 64}, "64 tokens to be loaded"),
        ("kv.prefetch", {"start": 0, "count": 1024}, "1,024 tokens (0 to 1,024) fetched nearer"),
        ("kv.transfer.end", {"transfer_id": 3, "failed": True}, "failed, transfer 3"),
        ("kv.load.error", {"blocks_ids": (1, 2)}, "2 blocks could not be loaded"),
        ("kv.lookup.rank", {"total": 512, "matched": 256}, "256 of 512 matched"),
        ("kv.lock", {"locks": 1}, "1 chunk"),
        ("kv.free", {"blocks_count": 4, "lease_expired": True}, "4 blocks, because a lease ran out"),
        ("kv.read", {}, "blocks"),
        ("kv.index", {"index_published": 1000, "index_applied": 999}, "index published 1,000, index applied 999"),
        ("kv.reset", {"succeeded": False}, "succeeded no"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 64, "check_unknown": 0, "check_healed": False},
         "64 loaded blocks looked at: all hold what was computed"),
        ("kv.block_check", {"check_look": "held", "check_blocks": 1}, "1 look at held blocks: all hold what was computed"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 0, "check_wrong_kinds": ("early",)},
         "1 loaded block looked at: 1 read before the load had ended"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 9, "check_unknown": 9},
         "9 loaded blocks looked at: 9 unknown, as what belongs there is not known"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 80, "check_unknown": 1, "check_wrong_more": 2,
         "check_wrong_kinds": ("drift", "early", "drift"), "check_healed": True},
         "80 loaded blocks looked at: 2 with what was not computed under the hash, 1 read before the load had ended, 2 more"
         " wrong, 1 unknown, as what belongs there is not known, the others hold what was computed; vLLM is told"
         " to compute the wrong ones again"),
        ("llm_request", {"keys": ("a", "b", "c", "d", "e")}, "keys a b c d and 1 more"),
    ],
)  # fmt: skip
def test_what_an_event_says(kind: str, numbers: dict[str, Any], said: str) -> None:
    assert words.said(kind, numbers) == said


def test_a_load_that_is_short_says_so() -> None:
    numbers = {"start": 0, "count": 128, "expected": 256}
    assert words.said("kv.load", numbers) == "128 tokens (0 to 128) copied into KV blocks, where 256 were expected"
    assert "expected" not in words.said("kv.load", numbers | {"expected": 128})


def test_block_ids_are_drawn_together() -> None:
    assert words.blocks(range(3, 19)) == "3-18"
    assert words.blocks([3, 4, 40, 7, 6, 5, 1, 2]) == "3-4, 40, 7, 6 and 3 more"


def test_how_often_the_guard_healed() -> None:
    assert words.healed(0, count=13) == "not healed"
    assert words.healed(13, count=13) == "healed by the guard"
    assert words.healed(2, count=13) == "healed by the guard twice"


@pytest.mark.parametrize("reason", Unknown)
def test_every_reason_says_what_to_do_and_is_documented(reason: Unknown) -> None:
    assert words.advice(reason).endswith(".")
    assert f"| `{reason.name.lower()}` |" in (DOCS / "limits.md").read_text()


def test_a_goodbye_is_said_in_words() -> None:
    closed = {"recorder_recorded": 9, "recorder_closed": True}
    assert words.said(semconv.Kind.HEARTBEAT, closed) == "goodbye"
    said = words.said(semconv.Kind.HEARTBEAT, {**closed, "recorder_ended_by": "KeyError: 'x'"})
    assert said == "goodbye; its engine ended by KeyError: 'x'"


def test_what_became_of_a_request() -> None:
    assert words.became("failed", None, "AssertionError: 3") == "a call about it raised AssertionError: 3"
    assert words.became("finished", "stopped", None) == "it ended: stopped"
    assert words.became("abandoned", semconv.CUT_OFF, None) == "its engine ended before it did"
    assert words.became("abandoned", semconv.UNHEARD, None) == "nothing more was heard of its engine"
    assert words.said(Kind.REQUEST, {"outcome": semconv.CUT_OFF}) == "its engine ended before it did"
    assert words.became("running", None, None) == "the recording ends before it does"
