"""Engines with equal caches share reference hashes: these name the owner of the KV in a block, and absence is never wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import permutations

import pytest
from history import history, judge, rules_found

from kvtrail.tracer.events.events import BlockCheck, Event
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.rules.contents import reference_hashes
from kvtrail.tracer.rules.contents.reference_hashes import SharedReferences

CACHE = "0123456789abcdef"


def engine(name: str, text: str, *, cache: str | None = CACHE) -> list[Event]:
    """The events of an engine with a recorder of its own."""
    return history(text, request=f"{name}-0123abcd", engine=name, recorder=name, cache_identity=cache)


def checks(text: str) -> list[BlockCheck]:
    return [event for event in engine("e", text) if isinstance(event, BlockCheck)]


def found(events: Sequence[Event]) -> list[Finding]:
    return [finding for held in judge(events).findings.values() for finding in held.values()]


PRODUCER = engine(
    "producer", "check computed 2 tells aa:1@0 ab:2@32 as plain\nb: check computed 1 tells ba:3@0 as plain\nend"
)
WRONG = engine("consumer", "check loaded 3 unknown 2 tells aa:1@0 ab:3@32 as plain")


@pytest.mark.parametrize("order", list(permutations(["producer", "consumer"])))
def test_a_load_of_another_blocks_content_is_found_whichever_engine_is_heard_first(order: Sequence[str]) -> None:
    heard = {"producer": PRODUCER, "consumer": WRONG}
    (finding,) = found([event for name in order for event in heard[name]])
    assert (finding.rule, finding.engine, finding.request) == ("byte-drift", "consumer", "consumer-0123abcd")
    assert finding.numbers == {
        "where": "differs", "look": "loaded", "looked": 3, "wrong": 1, "token": 32, "block_size": 32, "rank": 0,
        "owner": "b-producer-0123abcd", "owner_engine": "producer", "owner_token": 0,
    }  # fmt: skip
    assert [witness.trace_id for witness in finding.witness] == [PRODUCER[0].trace_id] * 2
    assert "this request's tokens 32 to 64 hold what engine producer computed at B1" in finding.explanation
    assert "for request b-producer-0123abcd's tokens 0 to 32, under another hash" in finding.explanation


TAKEN_OVER = "v: check admitted 2 unknown 2 tells aa:1@0 ab:{content}@32 as plain\nend"


def taking_over(content: int, between: str = "") -> list[Event]:
    """An engine that loads a wrong block, and takes its blocks over for another request, with this content of the second."""
    load = "check loaded 2 unknown 2 tells aa:1@0 ab:3@32 as plain\nend\n"
    return engine("consumer", f"{load}{between}{TAKEN_OVER.format(content=content)}")


@pytest.mark.parametrize("order", list(permutations(["producer", "consumer"])))
def test_who_finds_a_wrong_load_in_vllms_prefix_cache_is_named_too(order: Sequence[str]) -> None:
    heard = {"producer": PRODUCER, "consumer": taking_over(3)}
    first, then = sorted(found([event for name in order for event in heard[name]]), key=lambda each: each.first_ns)
    assert (first.request, then.request) == ("consumer-0123abcd", "v-consumer-0123abcd")
    assert (first.numbers["look"], then.numbers["look"]) == ("loaded", "admitted")
    assert "source" not in first.numbers
    assert then.numbers["wrong"] == 1
    assert "2 blocks were compared" in then.explanation
    assert "Request consumer-0123abcd's load left it so." in then.explanation


@pytest.mark.parametrize(
    "events",
    [
        taking_over(2),
        taking_over(7),
        taking_over(2, "w: check computed 1 tells ab:2@32 as plain\nend\n"),
    ],
    ids=["written again by another load", "by something unknown", "computed again"],
)
def test_who_takes_over_what_was_written_since_is_not_named(events: list[Event]) -> None:
    assert {each.request for each in found([*PRODUCER, *events])} == {"consumer-0123abcd"}


def test_a_load_with_blocks_that_come_to_light_one_by_one_is_one_finding_with_all_of_them() -> None:
    loads = engine("consumer", "check loaded 3 unknown 3 tells aa:11@0 ab:12@32 ac:13@64 as plain")
    later = "\n".join(
        f"{n}: check computed 1 tells b{n}:{content}@{32 * n} as plain" for n, content in ((2, 13), (0, 11), (1, 12))
    )
    right = "o: check computed 3 tells aa:1@0 ab:2@32 ac:3@64 as plain"
    (finding,) = found([*loads, *engine("producer", f"{right}\n{later}\nend")])
    assert (finding.count, finding.numbers["wrong"]) == (1, 3)
    assert [finding.numbers[name] for name in ("token", "owner", "owner_token")] == [0, "0-producer-0123abcd", 0]
    assert "and 3 did not match: this request's tokens 0 to 32 hold" in finding.explanation


def test_wrong_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_hashes, "MAX_WRONG", 3)
    known = SharedReferences()
    load = "check loaded 2 unknown 2 tells aa:3@0 ab:3@32 as plain"
    for event in [*PRODUCER, *engine("consumer", "\n".join(f"r{n}: {load}" for n in range(4)))]:
        if isinstance(event, BlockCheck):
            known.enter(event)
            assert known._wrongs == sum(map(len, known._wrong.values())) <= 3
    assert known._wrongs == 2


HANDED = """
start 600
gives h1 600/600 of a
check computed 1 tells aa:1@0 as plain
end
o: start 600
o: gives h2 600/600 of b
o: check computed 1 tells ba:3@0 as plain
o: end
"""


@pytest.mark.parametrize(
    ("takes", "sentence"),
    [
        ("takes h2 600/600 of b", "That request was handed over to consumer-0123abcd (H1)."),
        ("takes h1 600/600 of a", "This request was to read what had been computed for request producer-0123abcd."),
        (
            "takes h1 600/600 of a\nw: start 600\nw: takes h2 600/600 of b",
            "handed over to w-consumer-0123abcd (H1). This request was to read what had been computed",
        ),
    ],
)
def test_to_whom_it_was_handed_over_is_said(takes: str, sentence: str) -> None:
    consumer = engine("consumer", f"start 600\n{takes}\ncheck loaded 1 unknown 1 tells aa:3@0 as plain")
    (finding,) = [each for each in found([*engine("producer", HANDED), *consumer]) if each.rule == "byte-drift"]
    assert sentence in re.sub(r" \([\d:.]+\)", "", finding.explanation)


def test_several_loads_that_are_found_wrong_at_once_are_a_finding_each() -> None:
    loads = engine("consumer", "\n".join(f"{name}: check loaded 1 unknown 1 tells ab:3@32 as plain" for name in "xyz"))
    assert sorted(f.request for f in found([*loads, *PRODUCER])) == [f"{name}-consumer-0123abcd" for name in "xyz"]


@pytest.mark.parametrize("order", list(permutations(["producer", "consumer"])))
def test_a_load_of_another_groups_content_is_found_under_the_same_hash(order: Sequence[str]) -> None:
    heard = {
        "producer": engine(
            "producer",
            "check computed 1 group 0 tells ab:2@32 as plain\ncheck computed 1 group 1 tells ab:3@32 as plain\nend",
        ),
        "consumer": engine("consumer", "check loaded 1 unknown 1 group 0 tells ab:3@32 as plain"),
    }
    (finding,) = found([event for name in order for event in heard[name]])
    assert (finding.rule, finding.engine) == ("byte-drift", "consumer")
    assert (finding.numbers["group"], finding.numbers["owner_group"]) == (0, 1)
    assert (
        "this request's bytes of KV cache group 0 at token 32 hold what engine producer computed" in finding.explanation
    )
    assert (
        "bytes of KV cache group 1 at token 32, under another hash or for another KV cache group" in finding.explanation
    )


def test_what_is_right_in_one_group_is_right_in_it_alone() -> None:
    producer = engine(
        "producer",
        "check computed 1 group 0 tells ab:2@32 as plain\ncheck computed 1 group 1 tells ab:3@32 as plain\nend",
    )
    assert found([*producer, *engine("consumer", "check loaded 1 unknown 1 group 1 tells ab:3@32 as plain")]) == []
    assert len(found([*producer, *engine("consumer", "check loaded 1 unknown 1 group 0 tells ab:3@32 as plain")])) == 1


def test_what_another_engine_computed_under_the_hash_is_right() -> None:
    right = engine("consumer", "check loaded 1 unknown 1 tells aa:1@0 as plain")
    for events in ([*PRODUCER, *right], [*right, *PRODUCER]):
        assert found(events) == []
    detector = judge([*PRODUCER, *right])
    assert detector.verdicts["byte-drift", Verdict.OK] == 1
    alone = judge(right)
    assert (alone.unknown["byte-drift", Unknown.CONTENT], rules_found(alone)) == (1, [])


@pytest.mark.parametrize(
    "other",
    [
        engine("producer", "check computed 1 tells ba:3@0 as plain", cache="another cache"),
        engine("producer", "check computed 1 tells ba:3@0 as plain", cache=None),
        engine("producer", "check computed 1 tells ba:3@0 as salted"),
        engine("producer", "check computed 1 tells ba:3@0"),
        engine("producer", "check computed 1 tells ba:3@0 as plain rank 1"),
        engine("producer", "check loaded 1 unknown 1 tells ba:3@0 as plain"),
        engine("producer", "check computed 1 tells ba:3@0 as plain\nb: check computed 1 tells ab:3@32 as plain"),
    ],
    ids=["another cache", "no cache", "another salt", "no salt reported", "another rank", "loaded too", "both hashes"],
)
def test_what_proves_nothing_is_unknown(other: list[Event]) -> None:
    assert found([*other, *WRONG]) == []


def test_losses_and_any_order_cause_no_findings() -> None:
    """Three engines compute and load each other's blocks, each in up to three versions."""
    for seed in range(40):
        rng = random.Random(seed)
        versions = {f"{n:02x}": [n * 10 + v for v in range(rng.randrange(1, 4))] for n in range(12)}
        events: list[Event] = []
        for name in "abc":
            lines = []
            for number in range(12):
                hashes = rng.sample(sorted(versions), 4)
                content = " ".join(f"{h}:{rng.choice(versions[h])}@{32 * n}" for n, h in enumerate(hashes))
                look = rng.choice(["computed 4", "loaded 4 unknown 4", "admitted 4 unknown 4"])
                lines.append(f"r{number}: check {look} tells {content} as plain")
            events += engine(name, "\n".join(lines))
        kept = [event for event in events if rng.random() > 0.2]
        rng.shuffle(kept)
        assert found(kept) == [], seed


GIVEN = """
    start 200
    {gave}
    gives h1 200/200 of a
    end delayed length_capped handoff computed 200 lease 30
"""
GAVE = "check computed 4 tells aa:1@0 ab:2@32 ac:3@64 ad:4@96 as plain"
TAKEN = "<d> start 200\n<d> takes h1 200/200 of a\n<d> L 200 c0 -> 199 async\n<d> A 199\n<d> R\n{took}"
TOOK = "<d> check loaded 4 unknown 4 tells aa:5@0 ab:6@32 ac:7@64 ad:8@96 as plain"


def handed_over(gave: str = GAVE, took: str = TOOK, *, given: str = GIVEN, taken: str = TAKEN) -> list[Event]:
    return engine("p", given.format(gave=gave) + taken.format(took=took))


def test_what_differs_in_all_of_several_blocks_from_what_was_handed_over_is_wrong_whoever_is_heard_first() -> None:
    events = handed_over()
    (finding,) = found(events)
    assert (finding.rule, finding.engine, finding.count) == ("byte-drift", "d", 1)
    assert (finding.numbers["wrong"], finding.numbers["given_by"], finding.numbers["given"]) == (4, "p", "p-0123abcd")
    late = [each for each in events if isinstance(each, BlockCheck) and each.engine == "p"]
    (same,) = found(sorted(events, key=lambda each: each in late))
    assert (same.numbers, same.request, same.count) == (finding.numbers, finding.request, 1)


@pytest.mark.parametrize(
    "events",
    [
        handed_over(took="<d> check loaded 2 unknown 2 tells aa:5@0 ab:6@32 as plain"),
        handed_over(took=TOOK.replace("ad:8", "ad:4")),
        handed_over(took=TOOK.replace("loaded 4", "loaded 5")),
        handed_over(took=TOOK.replace("aa", "ba").replace("ab", "bb")),
        handed_over(gave=f"P\n{GAVE}"),
        handed_over(gave=f"{GAVE}\nb: check computed 1 tells ab:6@32 as plain"),
        handed_over(gave="b: " + GAVE),
        handed_over(taken=TAKEN.replace("takes h1", "takes h2")),
        handed_over(taken=TAKEN.replace("<d> R", "<d> error [1 2]\n<d> R")),
        handed_over(gave=f"{GAVE} rank 1"),
    ],
    ids=[
        "two blocks", "one is right", "one is known to be right", "two can be compared", "preempted", "another version",
        "another request computed it", "another hand-off", "blocks failed", "another rank",
    ],
)  # fmt: skip
def test_what_may_be_another_version_or_another_failure_is_unknown(events: list[Event]) -> None:
    assert [each for each in found(events) if each.rule == "byte-drift"] == []
    checks_ = [each for each in events if isinstance(each, BlockCheck) and each.check_look == "computed"]
    late = found(sorted(events, key=lambda each: each in checks_))
    assert [each for each in late if each.rule == "byte-drift"] == []


def test_engines_with_different_caches_are_not_compared() -> None:
    events = handed_over()
    for event in events:
        event.cache_identity = event.engine
    assert found(events) == []
