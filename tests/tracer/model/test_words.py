"""Events and numbers in words, as audit and dashboard both say them."""

from __future__ import annotations

import re
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
        ("kv.free", {"blocks_count": 4, "lease_expired": True}, "4 blocks, because a lease ran out"),
        ("kv.free", {"lease_expired": True}, "because a lease ran out"),
        ("kv.read", {"blocks_count": 4}, "4 blocks, reported by another engine"),
        ("kv.lease", {"lease_s": 20}, "kept for 20 seconds from here on"),
        ("kv.read", {"notifications_expected": 2}, "reported by another engine, one of 2 expected"),
        (
            "kv.xfer",
            {"xfer_op": "read", "xfer_state": "failed", "blocks_count": 4, "peer": "p-0", "peer_rank": 1, "reason": "ERR"},
            "read of 4 blocks of rank 1 of p-0 failed: ERR",
        ),
        ("kv.xfer", {"xfer_op": "write", "xfer_state": "posted", "peer": "d-0"}, "write to d-0 posted"),
        ("kv.notification", {"notification": "done", "direction": "received", "notifications_expected": 2},
         "`done` received, one of 2 expected"),
        ("kv.notification", {"notification": "registration", "direction": "sent", "peer": "p-0", "reason": "no route"},
         "`registration` not sent to p-0: no route"),
        (
            "kv.handoff",
            {"handoff_side": "gives", "handoff_tokens": 600, "handoff_keys": ("transfer_id:t",)},
            "the KV of 600 tokens kept for another engine as transfer_id:t",
        ),
        ("kv.handoff", {"handoff_side": "takes"}, "KV to be read from another engine"),
        ("kv.read", {}, "reported by another engine"),
        ("kv.refcount", {"refs": 1000, "pins": 999}, "refs 1,000, pins 999"),
        ("kv.reset", {"succeeded": False}, "succeeded no"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 64, "check_unknown": 0, "check_healed": False},
         "64 loaded blocks checked: all hold what was computed"),
        ("kv.block_check", {"check_look": "held", "check_blocks": 1}, "1 held block checked: all hold what was computed"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 0, "check_wrong_kinds": ("early",)},
         "1 loaded block checked: 1 read before the load had ended"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 9, "check_unknown": 9},
         "9 loaded blocks checked: 9 unknown, as their reference is not known"),
        ("kv.block_check", {"check_look": "loaded", "check_blocks": 80, "check_unknown": 1, "check_wrong_more": 2,
         "check_wrong_kinds": ("drift", "early", "drift"), "check_healed": True},
         "80 loaded blocks checked: 2 with content that was not computed under the hash, 1 read before the load had ended, 2"
         " more wrong, 1 unknown, as their reference is not known; vLLM recomputes"
         " the wrong ones"),
        ("llm_request", {"keys": ("a", "b", "c", "d", "e")}, "keys a, b, c, d and 1 more"),
    ],
)  # fmt: skip
def test_what_an_event_says(kind: str, numbers: dict[str, Any], said: str) -> None:
    assert words.described(kind, numbers) == said


def test_a_load_that_is_short_says_so() -> None:
    numbers = {"start": 0, "count": 128, "expected": 256}
    assert words.described("kv.load", numbers) == "128 tokens (0 to 128) copied into KV blocks, where 256 were expected"
    assert "expected" not in words.described("kv.load", numbers | {"expected": 128})


def test_block_ids_are_drawn_together() -> None:
    assert words.blocks(range(3, 19)) == "3-18"
    assert words.blocks_named({"blocks_ids": (1, 2, 9), "blocks_by_group": (2, 0, 1)}) == "1-2 | none | 9"
    assert words.blocks_named({"blocks_ids": (1, 2, 9)}) == "1-2, 9"
    assert words.blocks([3, 4, 40, 7, 6, 5, 1, 2]) == "3-4, 40, 7, 6 and 3 more"


def test_how_often_the_guard_healed() -> None:
    assert words.healed(0, count=13) == "not healed"
    assert words.healed(13, count=13) == "healed by the guard"
    assert words.healed(2, count=13) == "healed by the guard twice"


@pytest.mark.parametrize("reason", Unknown)
def test_every_reason_says_what_to_do_and_is_documented(reason: Unknown) -> None:
    assert words.ADVICE[reason].endswith(".")
    assert f"| `{reason.name.lower()}` |" in (DOCS / "limits.md").read_text()


def test_an_end_record_is_said_in_words() -> None:
    closed = {"recorder_recorded": 9, "recorder_closed": True}
    assert words.described(semconv.Kind.HEARTBEAT, closed) == "end record"
    said = words.described(semconv.Kind.HEARTBEAT, {**closed, "recorder_ended_by": "KeyError: 'x'"})
    assert said == "end record; its engine ended by KeyError: 'x'"
    said = words.described(semconv.Kind.HEARTBEAT, {**closed, "recorder_ended_by": semconv.NO_END_RECORD})
    assert said == "end record, sent in the place of its engine"


def test_the_root_of_an_interrupted_request_in_words() -> None:
    assert words.described(Kind.REQUEST, {"outcome": semconv.CUT_OFF}) == "its engine ended before it did"


@pytest.mark.parametrize(
    ("kind", "numbers", "text"),
    [
        (
            Kind.ALLOC,
            {"allocated": 256, "blocks_count": 10, "blocks_by_group": (8, 2)},
            "10 blocks (8 | 2 by KV cache group) for 256 external tokens",
        ),
        (
            Kind.RANK_LOOKUP,
            {"matched": 48, "total": 100, "group": 1, "boundaries": (32, 48)},
            "group 1: 48 of 100 matched, held up to 32 or 48",
        ),
        (
            Kind.LOAD_PLAN,
            {"start": 0, "count": 64, "blocks_ids": (1, 2, 8), "blocks_by_group": (2, 1), "transfer_id": 4},
            "64 tokens (0 to 64) to be loaded, 3 blocks (2 | 1 by KV cache group), transfer 4",
        ),
        (Kind.RANK_LOOKUP, {"matched": 0, "group": 1, "boundaries": ()}, "group 1: 0 matched, held up to none"),
        (Kind.RANK_LOOKUP, {"matched": 48, "total": 100}, "48 of 100 matched"),
        (Kind.PREFIX_CACHE, {"cache_changes": (3, -2), "group": 1}, "group 1: 3 blocks stored, 2 removed"),
    ],
)
def test_what_concerns_a_group_names_it(kind: Kind, numbers: dict[str, Any], text: str) -> None:
    assert words.described(kind, numbers) == text


@pytest.mark.parametrize(
    ("number", "digits", "said"),
    [
        (0, 3, "0"), (2.314, 3, "2.31"), (12.0, 3, "12"), (99.96, 3, "100"), (99.7, 2, "100"), (1240.4, 3, "1,240"),
        (0.000123, 2, "0.00012"), (-1.25, 3, "-1.25"), (1e9, 2, "1,000,000,000"),
    ],
)  # fmt: skip
def test_a_number_is_never_in_a_machines_notation(number: float, digits: int, said: str) -> None:
    """`(1e+02 %)` stood on a page, and `1e+03 ms`."""
    assert words.significant(number, digits) == said


@pytest.mark.parametrize(
    ("ns", "said"),
    [(999_400, "999 µs"), (999_700, "1 ms"), (999_400_000, "999 ms"), (999_700_000, "1.00 s"), (2_310_000, "2.31 ms")],
)
def test_a_duration_goes_on_to_the_next_unit(ns: int, said: str) -> None:
    assert words.duration(ns) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("At L1 1 tokens were computed", "At L1 1 token was computed"),
        ("1 requests in a row; 1 blocks have ended", "1 request in a row; 1 block has ended"),
        ("11 tokens, 1,001 tokens, 2.1 seconds, -1 tokens", "11 tokens, 1,001 tokens, 2.1 seconds, -1 tokens"),
        ("those of the last 64 - 1 tokens", "those of the last 64 - 1 tokens"),
        ("of block 1 tokens are missing", "of block 1 tokens are missing"),
    ],
)
def test_one_is_not_several(text: str, said: str) -> None:
    assert words.singular(text) == said


def test_no_other_place_rounds_to_significant_digits() -> None:
    """A format of Python's that does is a machine's notation from some size on."""
    rounds = re.compile(r"\{[^{}]*:[,.\d]*g\}")
    root = Path(__file__).parents[3]
    files = [path for part in ("tracer", "dashboard") for path in (root / part).rglob("*.py")]
    assert [path.name for path in files if rounds.search(path.read_text())] == []
