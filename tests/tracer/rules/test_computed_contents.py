"""Engines are joined by some bytes of every block, and what these do not prove causes no findings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import BlockCheck, Event
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.rules.contents import computed_contents
from kvtrail.tracer.rules.contents.computed_contents import ComputedContents, reported_blocks

A, B, C = 0x1111111111111111, 0x2222222222222222, 0x3333333333333333
"""Contents."""
B_ELSEWHERE = B ^ 0xFFFF
"""B where another hash is: the lowest bits are drawn by the hash."""


def engine(name: str, text: str, *, cache: str | None = "0123456789abcdef") -> list[Event]:
    """The events of an engine with a recorder of its own."""
    return history(text, request=f"{name}-0123abcd", engine=name, recorder=name, cache_identity=cache)


def checks(text: str) -> list[BlockCheck]:
    return [event for event in engine("e", text) if isinstance(event, BlockCheck)]


def found(events: Sequence[Event]) -> list[Finding]:
    return [finding for held in judge(events).findings.values() for finding in held.values()]


PRODUCER = engine("producer", f"check computed 2 tells aa:{A}@0 ab:{C}@32 as plain")
OTHER = engine("other", f"check computed 1 tells ba:{B}@64 as plain\nend")
WRONG = engine("consumer", f"check loaded 3 unknown 2 tells aa:{A}@0 ab:{B_ELSEWHERE}@32 as plain")


@pytest.mark.parametrize("order", list(permutations(["producer", "other", "consumer"])))
def test_a_load_of_another_blocks_content_is_found_once_in_any_order(order: Sequence[str]) -> None:
    heard = {"producer": PRODUCER, "other": OTHER, "consumer": WRONG}
    (finding,) = found([event for name in order for event in heard[name]])
    assert (finding.rule, finding.engine, finding.count) == ("byte-drift", "consumer", 1)
    assert finding.numbers == {
        "where": "differs", "look": "loaded", "looked": 3, "wrong": 1, "token": 32, "block_size": 32, "rank": 0,
        "owner": "other-0123abcd", "owner_engine": "other", "owner_token": 64,
    }  # fmt: skip


@pytest.mark.parametrize("order", list(permutations(["producer", "consumer"])))
def test_a_load_of_another_groups_content_is_found_under_the_same_hash(order: Sequence[str]) -> None:
    heard = {
        "producer": engine(
            "producer",
            f"check computed 1 group 0 tells ab:{A}@32 as plain\ncheck computed 1 group 1 tells ab:{B}@32 as plain\nend",
        ),
        "consumer": engine("consumer", f"check loaded 1 unknown 1 group 0 tells ab:{B}@32 as plain"),
    }
    (finding,) = found([event for name in order for event in heard[name]])
    assert (finding.rule, finding.engine, finding.count) == ("byte-drift", "consumer", 1)
    assert (finding.numbers["group"], finding.numbers["owner_group"]) == (0, 1)


def test_a_finding_is_not_repeated_by_what_is_computed_later() -> None:
    again = [engine(f"later{n}", f"check computed 2 tells ab:{C}@32 ba:{B}@64 as plain") for n in range(3)]
    (finding,) = found([*WRONG, *PRODUCER, *OTHER, *(event for events in again for event in events)])
    assert finding.count == 1


def test_what_another_engine_computed_under_the_hash_is_right() -> None:
    right = engine("consumer", f"check loaded 1 unknown 1 tells aa:{A}@0 as plain")
    detector = judge([*PRODUCER, *right])
    assert (detector.verdicts["byte-drift", Verdict.OK], rules_found(detector)) == (1, [])
    assert judge(right).unknown["byte-drift", Unknown.CONTENT] == 1


@pytest.mark.parametrize(
    "others",
    [
        OTHER,
        [*OTHER, *engine("near", f"check computed 1 tells ab:{B ^ 0xFF0000}@32 as plain")],
        [*PRODUCER, *engine("salted", f"check computed 1 tells ba:{B}@64 as salted")],
        [*PRODUCER, *engine("rank", f"check computed 1 tells ba:{B}@64 as plain rank 1")],
        [*PRODUCER, *engine("away", f"check computed 1 tells ba:{B}@64 as plain", cache="another")],
        [*PRODUCER, *engine("loaded", f"check loaded 1 unknown 1 tells ba:{B}@64 as plain")],
        [*PRODUCER, *OTHER, *engine("both", f"check computed 1 tells ab:{B_ELSEWHERE}@32 as plain")],
    ],
    ids=["its own hash unknown", "nearly the same", "a salt", "a rank", "another cache", "loaded too", "both hashes"],
)
def test_what_proves_nothing_is_unknown(others: list[Event]) -> None:
    assert found([*others, *WRONG]) == []


def sliced(name: str, slice_: str, text: str) -> list[Event]:
    """An engine of another tensor-parallel size than others of this slice."""
    events = engine(name, text, cache=f"cache of {name}")
    for event in events:
        if isinstance(event, BlockCheck):
            event.check_slice = slice_
    return events


COMPUTED = f"check computed 2 tells aa:{A}@0 ba:{B}@32 as plain\nend"


@pytest.mark.parametrize("order", list(permutations(["producer", "consumer"])))
@pytest.mark.parametrize(
    ("content", "slice_", "wrong", "right"),
    [(A ^ 0xF0F0, "c/0", [], 1), (B ^ 0xF0F0, "c/0", [1], 0), (B ^ 0xF0F0, "c/4", [], 0), (B, "d/0", [], 0)],
    ids=["right", "another's", "another head", "another cache"],
)
def test_engines_of_different_tensor_parallel_sizes_are_compared_by_a_head(
    order: Sequence[str], content: int, slice_: str, wrong: list[int], right: int
) -> None:
    """All but the lowest bits are of the first head of a rank, the lowest of all of its heads."""
    heard = {
        "producer": sliced("producer", "c/0", COMPUTED),
        "consumer": sliced("consumer", slice_, f"check loaded 1 unknown 1 tells aa:{content}@0 as plain"),
    }
    detector = judge([event for name in order for event in heard[name]])
    findings = [each for held in detector.findings.values() for each in held.values()]
    assert [each.numbers["wrong"] for each in findings] == wrong
    if order[0] == "producer":
        assert detector.verdicts["byte-drift", Verdict.OK] == right


@pytest.mark.parametrize("by_heads", [False, True])
def test_losses_and_any_order_cause_no_findings(by_heads: bool) -> None:
    """Three engines compute and load each other's blocks, each in up to three versions that are nearly the same, and pairs
    of blocks of two prompts that are nearly the same."""
    for seed in range(40):
        rng = random.Random(seed)
        contents = {f"{n:02x}": rng.getrandbits(63) for n in range(12)}
        for n in range(0, 12, 3):
            contents[f"{n:02x}"] = contents[f"{n + 1:02x}"] ^ (rng.choice([0, 0xFF]) << 16)
        versions = {h: [c ^ (v << 56) ^ (v << 24) for v in range(rng.randrange(1, 4))] for h, c in contents.items()}
        events: list[Event] = []
        for name in "abc":
            text = []
            for number in range(12):
                hashes = rng.sample(sorted(versions), 4)
                content = " ".join(f"{h}:{rng.choice(versions[h])}@{32 * n}" for n, h in enumerate(hashes))
                look = rng.choice(["computed 4", "loaded 4 unknown 4", "admitted 4 unknown 4"])
                text.append(f"r{number}: check {look} tells {content} as plain")
            events += sliced(name, "c/0", "\n".join(text)) if by_heads else engine(name, "\n".join(text))
        kept = [event for event in events if rng.random() > 0.2]
        rng.shuffle(kept)
        assert found(kept) == [], seed


def test_the_oldest_hash_is_forgotten_with_all_of_its_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_contents, "MAX_BLOCKS", 8)
    known, rng = ComputedContents(), random.Random(0)
    contents = {n: rng.getrandbits(63) for n in range(1, 200)}
    for n, content in contents.items():
        for event in checks(f"check computed 2 tells {n:02x}:{content}@0 {n:02x}:{content ^ 1}@0 as plain"):
            known.enter(event)
    remembered = []
    for n, content in contents.items():
        (event,) = checks(f"check loaded 2 tells {n:02x}:{content}@0 {n:02x}:{content ^ 1}@0 as plain")
        both = [known.is_right(block) for block in reported_blocks(event)]
        assert both[0] == both[1], n
        assert known.foreign(event) == []
        remembered += [n] * both[0]
    assert remembered == [*range(192, 200)]


def test_loads_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_contents, "MAX_WAITING", 3)
    known = ComputedContents()
    for n in range(1, 9):
        for event in checks(f"check loaded 1 unknown 1 tells {n:02x}:{n << 40}@0 as plain"):
            known.enter(event)
    assert known._waits == sum(map(len, known._waiting.values())) == 3
    assert len(known._by_hash) == len(known._by_content) == 3


def test_bytes_that_are_no_whole_rows_report_nothing() -> None:
    (event,) = checks(f"check loaded 3 unknown 2 tells aa:{A}@0 ab:{B_ELSEWHERE}@32 as plain")
    event.check_fingerprints = event.check_fingerprints[:-1]
    assert reported_blocks(event) == []
    assert found([*PRODUCER, *OTHER, event]) == []
