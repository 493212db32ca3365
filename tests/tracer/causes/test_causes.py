"""Why tokens of a prompt were reused or computed, derived from little histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from history import hash_of, history
from msgspec import structs

from kvtrail.tracer.causes.attribution import Attribution
from kvtrail.tracer.causes.causes import Causes
from kvtrail.tracer.causes.fleet import Fleet
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.capabilities import Capability, declaration
from kvtrail.tracer.events.events import Event, Evict, Heartbeat, Lookup, StorePlan
from kvtrail.tracer.ledger.facts import Breakdown
from kvtrail.tracer.model.causes import Cause, NotRecorded, Part

REPORTING = declaration({"Connector": [Capability.TELLS_CHUNKS]})


def splits(events: Sequence[Event], *, without: Sequence[int] = ()) -> list[Breakdown]:
    """The admissions of a history that lost some of its events."""
    causes = Causes()
    lost = False
    for event in events:
        if event.sequence in without:
            lost = True
            continue
        if lost:
            causes.mark_gap(NotRecorded.LOST, before=event)
            lost = False
        causes.enter(event)
    return list(dict.fromkeys(causes.breakdowns))


def reported(
    text: str, *, chunk: int = 32, capabilities: str | None = REPORTING, without: Sequence[int] = ()
) -> list[str]:
    """What is said of each admission of a history."""
    events = history(text, chunk=chunk, capabilities=capabilities)
    made = splits(events, without=without)
    for split in made:
        assert sum(part.tokens for part in split.parts) == split.lookup.total, split
        ends = [0, *(part.end for part in split.parts)]
        assert [part.start for part in split.parts] == ends[:-1], split
    return [", ".join(map(_said, split.parts)) for split in made]


def _said(part: Part) -> str:
    what = f"{part.cause}:{part.tier}" if part.tier else part.cause.value
    why = part.detail
    detail = " ".join(filter(None, (why.why, why.request.partition("-")[0], why.unstored, why.refusal)))
    return f"{what} {part.tokens}" + (f" ({detail})" if detail else "")


FIRST = """
    cache
    a: start 110 of a b c
    a: L 110 c0 h0 -> 0
    a: A 0
"""
"""A request that computes three blocks, and 14 tokens more."""
RAN = (
    FIRST
    + """
    cache + a b c
    a: S 0+110
    a: plan store 0+96 keys =a,=b,=c
    a: end computed 110
"""
)


def test_what_was_never_seen_is_new() -> None:
    assert reported(FIRST) == ["new 96, unaligned 14"]


@pytest.mark.parametrize("between", ["", "wait 6\n"], ids=["at once", "a heartbeat between"])
def test_what_an_allocation_has_brought_into_vllms_cache_its_lookup_did_not_find(between: str) -> None:
    assert reported(f"cache\na: start 110 of a b c\na: L 110 c0 h0 -> 0\ncache + a b c\n{between}a: A 0") == [
        "new 96, unaligned 14"
    ]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        pytest.param("b: start 100 of a b c\nb: L 100 c96 h96 -> 0\nb: A 0", "held:gpu 96, unaligned 4", id="held"),
        pytest.param(
            "b: start 96 of a b c\nb: L 96 c64 h96 -> 31\nb: A 31",
            "held:gpu 64, loaded:store 31, last-token:store 1",
            id="one token after a load",
        ),
        pytest.param(
            "b: start 96 of a b c\nb: L 96 c64 h64 -> 0\nb: A 0", "held:gpu 64, last-token:gpu 32", id="last block"
        ),
        pytest.param(
            "b: start 160 of a b c d e\nb: L 160 c96 h96 -> 0\nb: A 0", "held:gpu 96, new 64", id="another prompt's end"
        ),
        pytest.param(
            "cache - c\nevict =c\nb: start 128 of a b c d\nb: L 128 c64 h64 -> 0\nb: A 0",
            "held:gpu 64, evicted:store 32, new 32",
            id="the store lost it last",
        ),
        pytest.param(
            "evict =c\ncache - c\nb: start 128 of a b c d\nb: L 128 c64 h64 -> 0\nb: A 0",
            "held:gpu 64, evicted:gpu 32, new 32",
            id="vLLM lost it last",
        ),
        pytest.param(
            "evict =c\ncache 0\nb: start 128 of a b c d\nb: L 128 c0 h64 -> 64\nb: A 64",
            "loaded:store 64, reset:gpu 32, new 32",
            id="vLLM's reset",
        ),
        pytest.param(
            "cache 0\nreset\nb: start 128 of a b c d\nb: L 128 c0 h0 -> 0\nb: A 0", "reset:store 96, new 32", id="reset"
        ),
        pytest.param(
            "cache 0\nreset refused\nevict =a\nb: start 128 of a b c d\nb: L 128 c0 h0 -> 0\nb: A 0",
            "evicted:store 32, stranded:store 64 (a), new 32",
            id="behind a hole of the store",
        ),
        pytest.param(
            "cache - b\nevict =b\nb: start 128 of a b c d\nb: L 128 c32 h32 -> 0\nb: A 0",
            "held:gpu 32, evicted:store 32, stranded:gpu 32, new 32",
            id="behind a hole of both",
        ),
        pytest.param(
            "cache 0\nb: start 128 of a b c d\nb: L 128 c0 h96 -> 32\nb: A 32",
            "loaded:store 32, refused:store 64 (a capped), new 32",
            id="the connector gives less than it has",
        ),
        pytest.param(
            "cache 0\nb: start 128 of a b c d\nb: L 128 c0 h96 -> 96\nb: A 0",
            "refused:store 96 (a untaken), new 32",
            id="vLLM does not take it",
        ),
        pytest.param(
            "cache 0\nb: start 128 of a b c d\nb: L 128 c0 h64 -> 0\nb: A 0",
            "refused:store 64 (a declined), unknown 32 (contradiction), new 32",
            id="the store denies what it was reported to hold",
        ),
        pytest.param(
            "b: start 96 of x y z\nb: L 96 c0 h0 -> 0\nb: A 0\ncache + x y z\nb: S 0+96\nb: plan store 0+0\n"
            "b: end computed 96\ncache - x y z\nc: start 100 of x y z\nc: L 100 c0 h0 -> 0\nc: A 0",
            "evicted:gpu 32 (full), evicted:gpu 64 (unasked), unaligned 4",
            id="never stored: there was no room",
        ),
    ],
)
def test_the_cause_of_each_block(then: str, said: str) -> None:
    assert reported(RAN + then)[-1] == said


@pytest.mark.parametrize(
    ("changes", "blocks", "said"),
    [
        ((2, -1, 1), "dedd", "held:gpu 96, refused:gpu 32, stranded:gpu 32, unaligned 10"),
        ((2, -1, 1, -2), "deeede", "held:gpu 96, evicted:gpu 64 (unasked), unaligned 10"),
        ((-1, 0, 1), "ad", "held:gpu 96, refused:gpu 32, new 32, unaligned 10"),
        ((1, 0, 2, 0, 1), "deda", "held:gpu 96, reset:gpu 64 (unasked), unaligned 10"),
        ((2**50, -(2**50)) * 1000, "de", "held:gpu 96, refused:gpu 32, stranded:gpu 32, unaligned 10"),
    ],
)
def test_changes_of_one_event_are_entered_in_their_order(changes: tuple[int, ...], blocks: str, said: str) -> None:
    *events, reported_changes, start, lookup, alloc = history(
        RAN + "cache + d\nb: start 170 of a b c d e\nb: L 170 c96 h96 -> 0\nb: A 0", chunk=32, capabilities=REPORTING
    )
    several = structs.replace(reported_changes, cache_changes=changes, block_hashes=b"".join(map(hash_of, blocks)))
    *_, split = splits([*events, several, start, lookup, alloc])
    assert ", ".join(map(_said, split.parts)) == said


def test_an_eviction_leads_to_its_event() -> None:
    text = RAN + "cache - c\nevict =c\nb: start 128 of a b c d\nb: L 128 c64 h64 -> 0\nb: A 0"
    events = history(text, chunk=32, capabilities=REPORTING)
    (evict,) = (event for event in events if event.kind == "kv.evict")
    part = splits(events)[-1].parts[1]
    assert (part.detail.span_id, part.detail.at_ns) == (evict.span_id, evict.end_ns)


def test_what_a_running_request_is_to_compute_is_pending_up_to_where_the_prompts_part() -> None:
    text = """
        cache
        a: start 200 of a b c d e f
        a: L 200 c0 h0 -> 0
        a: A 0
        cache + a b
        a: S 0+64
        b: start 128 of a b c x
        b: L 128 c64 h0 -> 0
        b: A 0
    """
    assert reported(text)[-1] == "held:gpu 64, pending:gpu 32 (a), new 32"
    aborted = text.replace("b: start", "a: end aborted computed 64\nb: start")
    assert reported(aborted)[-1] == "held:gpu 64, new 64"


def test_a_store_under_way_is_pending_until_it_ends_or_fails() -> None:
    text = """
        cache
        a: start 100 of a b c
        a: L 100 c0 h0 -> 0
        a: A 0
        cache + a b c
        a: S 0+100
        a: plan store 0+96 keys =a,=b,=c #7
        {then}
        a: end computed 100
        cache 0
        b: start 100 of a b c
        b: L 100 c0 h{held} -> 0
        b: A 0
    """
    assert reported(text.format(then="", held=0))[-1] == "pending:store 96 (a), unaligned 4"
    assert reported(text.format(then="a: done #7", held=96))[-1].startswith("refused:store 96")
    assert reported(text.format(then="a: done #7 failed", held=0))[-1] == "reset:gpu 96 (failed), unaligned 4"


LOADS = RAN + "cache 0\nb: start 128 of a b c d\nb: L 128 c0 h96 -> 96{how}\nb: A 96 [1-4]\n"


@pytest.mark.parametrize(
    ("how", "then", "said"),
    [
        ("", "b: S 96+32\nb: S 128+1", "loaded:store 96, new 32"),
        ("", "b: S 96+32\nb: error [2]\nb: S 32+96", "loaded:store 32, failed-load:store 64, new 32"),
        ("", "b: S 96+32\nb: error [2]\nb: end aborted computed 32", "loaded:store 32, failed-load:store 64, new 32"),
        (" async", "b: R\nb: S 96+32", "loaded:store 96, new 32"),
        (" async", "b: error [2]\nb: R failed\nb: S 32+96", "loaded:store 32, failed-load:store 64, new 32"),
    ],
)
def test_a_load_that_failed_ends_where_the_request_computes(how: str, then: str, said: str) -> None:
    assert reported(LOADS.format(how=how) + then)[-1] == said


def test_a_load_with_lost_end_events_may_have_failed() -> None:
    text = LOADS.format(how="") + "b: S 96+32\nb: error [2]\nb: S 32+64\nb: S 96+32\nb: S 128+1"
    first = next(event.sequence for event in history(text) if getattr(event, "allocated", 0)) + 1
    assert reported(text)[-1] == "loaded:store 32, failed-load:store 64, new 32"
    assert reported(text, without=[first])[-1] == "unknown 32 (lost), failed-load:store 64, new 32"
    assert reported(text, without=[first + 1, first + 2])[-1] == "unknown 96 (lost), new 32"


def test_what_failed_and_is_not_given_again_has_failed() -> None:
    again = LOADS.format(how=" async") + "b: error [1]\nb: R failed\nevict =a\nb: L 128 c0 h0 -> 0\nb: A 0 [1-4]"
    assert reported(again)[-1] == "failed-load:store 32, stranded:store 64 (a), new 32"


def test_after_a_preemption_the_same_request_is_split_again() -> None:
    text = FIRST + "cache + a b c\na: S 0+110\ncache - c\na: P\na: L 111 c64 h0 -> 0\na: A 0"
    assert reported(text)[-1] == "held:gpu 64, evicted:gpu 32 (unasked), unaligned 15"


@pytest.mark.parametrize(
    ("answers", "given", "said"),
    [
        (["0"], 0, "refused:store 96 (a declined)"),
        (["32"], 32, "loaded:store 32, refused:store 64 (a capped)"),
        (["96"], 0, "refused:store 96 (a untaken)"),
        (["later", "0"], 0, "refused:store 96 (a given-up)"),
        (["later", "96"], 96, "loaded:store 96"),
    ],
)
def test_what_a_store_held_and_did_not_give_is_refused_with_the_reason(
    answers: Sequence[str], given: int, said: str
) -> None:
    lookups = "\n".join(f"b: L 128 c0 h96 -> {answer}" for answer in answers)
    assert reported(f"{RAN}cache 0\nb: start 128 of a b c d\n{lookups}\nb: A {given}")[-1] == f"{said}, new 32"


def test_a_chunk_of_several_blocks_is_there_or_not_as_a_whole() -> None:
    text = """
        cache
        a: start 140 of a b c d
        a: L 140 c0 h0 -> 0
        a: A 0
        cache + a b c d
        a: S 0+140
        a: plan store 0+128 keys =b,=d
        a: end computed 140
        cache - d c b
        {then}
    """
    stored = text.format(then="b: start 160 of a b c d e\nb: L 160 c32 h128 -> 96\nb: A 96")
    assert reported(stored, chunk=64)[-1] == "held:gpu 32, loaded:store 96, new 32"
    evicted = text.format(then="evict =d\nb: start 160 of a b c d e\nb: L 160 c32 h64 -> 32\nb: A 32")
    assert reported(evicted, chunk=64)[-1] == "held:gpu 32, loaded:store 32, evicted:store 64, new 32"
    within = text.format(then="evict =d\nb: start 100 of a b c\nb: L 100 c32 h64 -> 32\nb: A 32")
    assert reported(within, chunk=64)[-1] == "held:gpu 32, loaded:store 32, evicted:gpu 32 (partial), unaligned 4"


# What was not reported.


def test_without_a_probe_only_what_was_never_computed_is_certain() -> None:
    text = RAN + "cache - c\nb: start 160 of a b c d e\nb: L 160 c64 -> 0\nb: A 0"
    assert reported(text, capabilities="{}")[-1] == "held:gpu 64, unknown 32 (probe), new 64"


def test_without_cache_events_nothing_is_known_of_what_was_computed() -> None:
    text = RAN.replace("cache + a b c", "").replace("cache\n", "\n")
    assert "cache" not in text
    text += "reset\nb: start 160 of a b c d e\nb: L 160 c32 h0 -> 0\nb: A 0"
    assert reported(text)[-1] == "held:gpu 32, unknown 128 (cache_events)"


def test_without_hashes_nothing_is_known_of_what_was_computed() -> None:
    assert reported("cache\na: start 110\na: L 110 c32 h0 -> 0\na: A 0") == [
        "held:gpu 32, unknown 64 (block_hashes), unaligned 14"
    ]


def test_while_a_prompt_without_hashes_is_computed_it_may_be_any() -> None:
    text = "cache\na: start 110\na: L 110 c0 h0 -> 0\na: A 0\n{then}b: start 96 of a b c\nb: L 96 c0 h0 -> 0\nb: A 0"
    assert reported(text.format(then=""))[-1] == "unknown 96 (block_hashes)"
    assert reported(text.format(then="a: S 0+110\n"))[-1] == "new 96"


def test_what_vllms_cache_held_is_unknown_once_it_is_no_longer_reported() -> None:
    text = RAN + "{then}b: start 160 of a b c d e\nb: L 160 c64 h96 -> 0\nb: A 0"
    assert reported(text.format(then=""))[-1] == "held:gpu 64, refused:gpu 32, new 64"
    assert reported(text.format(then="cache\n"))[-1] == "held:gpu 64, unknown 96 (cache_events)"


def test_after_a_loss_nothing_is_said_but_of_blocks_that_are_named_for_the_first_time() -> None:
    text = RAN + "cache - c\nb: start 160 of a b c d e\nb: L 160 c64 h96 -> 0\nb: A 0"
    eviction = next(event.sequence for event in history(text) if getattr(event, "cache_changes", ()) == (-1,))
    said = reported(text, without=[eviction])
    assert said[-1] == "held:gpu 64, unknown 32 (lost), new 64"


def test_what_a_store_gained_after_it_had_looked_is_not_behind_a_hole() -> None:
    text = (
        RAN
        + """
        cache - b c
        evict =c
        evict =b
        b: start 100 of a b c
        b: L 100 c32 -> later
        a: plan store 32+64 keys =b,=c
        b: L 100 c32 h32 -> 0
        b: A 0
        """
    )
    assert reported(text)[-1] == "held:gpu 32, refused:store 64 (a given-up), unaligned 4"
    for event in history(text):
        if isinstance(event, (StorePlan, Evict, Lookup)):
            assert "stranded" not in "".join(reported(text, without=[event.sequence])), event


def test_behind_what_a_store_may_have_gained_after_it_had_looked_nothing_is_sure() -> None:
    text = RAN + "cache 0\nb: start 100 of a b c\nb: L 100 c0 -> later\na: plan store 32+64 keys =b,=c\n"
    text += "b: L 100 c0 h0 -> 0\nb: A 0"
    stored = next(event.sequence for event in history(text) if isinstance(event, StorePlan))
    assert reported(text, without=[stored])[-1] == "unknown 96 (lost), unaligned 4"


def test_each_lost_event_makes_causes_unknown_and_never_others() -> None:
    text = (
        RAN
        + """
        cache - c
        evict =c
        b: start 160 of a b c d e
        b: L 160 c64 h64 -> 0
        b: A 0
        cache + c d e
        b: S 64+96
        b: plan store 64+96 keys =c,=d,=e
        b: end computed 160
        cache - e d
        c: start 200 of a b c d e f
        c: L 200 c96 h160 -> 64
        c: A 64
        c: S 160+40
        c: S 200+1
    """
    )
    whole = {split.event.sequence: split for split in splits(history(text, chunk=32, capabilities=REPORTING))}
    unknown = 0
    for lost in range(len(history(text))):
        for split in splits(history(text, chunk=32, capabilities=REPORTING), without=[lost]):
            truth = _by_block(whole[split.event.sequence].parts)
            for block, said in _by_block(split.parts).items():
                assert said in ("unknown", truth[block]), (lost, split.event.sequence, block, said)
                unknown += said == "unknown"
    assert unknown


def _by_block(parts: Sequence[Part]) -> dict[int, str]:
    return {token: part.cause.value for part in parts for token in range(part.start, part.end, 2)}


def test_a_cache_that_was_heard_late_is_known_from_then_on() -> None:
    text = """
        a: start 96 of a b c
        cache late + x y
        b: start 100 of x y z
        b: L 100 c64 h0 -> 0
        b: A 0
        b: S 64+36
        cache - y
        c: start 100 of x y z
        c: L 100 c32 h0 -> 0
        c: A 0
    """
    assert reported(text) == [
        "held:gpu 64, unknown 32 (late), unaligned 4",
        "held:gpu 32, evicted:gpu 32 (unasked), unknown 32 (late), unaligned 4",
    ]


def test_what_cannot_be_true_is_unknown_and_the_parts_make_up_the_prompt() -> None:
    assert reported("a: start 96 of a b c\na: L 96 c64 h96 -> 64\na: A 64") == ["unknown 96 (contradiction)"]


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        pytest.param("of-model/one", "held:gpu 32, elsewhere 64, new 32", id="comparable"),
        pytest.param("of-model/other", "held:gpu 32, unknown 96 (fleet)", id="another seed"),
        pytest.param("another/other", "held:gpu 32, new 96", id="another model"),
        pytest.param(None, "held:gpu 32, new 96", id="not reported"),
    ],
)
def test_what_another_engine_computed_is_elsewhere_where_hashes_can_be_compared(
    identity: str | None, said: str
) -> None:
    fleet = Fleet()
    first, second = Causes(fleet), Causes(fleet)
    for event in history(RAN, capabilities=REPORTING, cache_identity="of-model/one", engine="first", recorder="first"):
        first.enter(event)
    text = "cache + a\nb: start 128 of a b c d\nb: L 128 c32 h0 -> 0\nb: A 0"
    for event in history(text, capabilities=REPORTING, cache_identity=identity, engine="second", recorder="second"):
        second.enter(event)
    (breakdown,) = second.breakdowns
    assert ", ".join(map(_said, breakdown.parts)) == said
    assert {part.detail.engine for part in breakdown.parts} - {""} == ({"first"} if "elsewhere" in said else set())


def test_an_engine_that_has_ended_is_no_stranger() -> None:
    fleet = Fleet()
    first, second = Causes(fleet), Causes(fleet)
    *story, last = history(RAN, capabilities=REPORTING, cache_identity="of-model/one", engine="first", recorder="first")
    for event in story:
        first.enter(event)
    common = {name: getattr(last, name) for name in ("engine", "recorder", "sequence", "start_ns", "end_ns")}
    first.enter(Heartbeat(**common, recorder_closed=True))
    for event in history(
        FIRST, capabilities=REPORTING, cache_identity="of-model/other", engine="second", recorder="second"
    ):
        second.enter(event)
    assert [part.cause for part in second.breakdowns[0].parts] == [Cause.NEW, Cause.UNALIGNED]


STORY = (
    RAN
    + """
    cache - c
    evict =c
    b: start 160 of a b c x y
    b: L 160 c64 h96 -> 32
    b: A 32 [1-5]
    b: error [3]
    cache + x
    b: S 64+40
    b: P
    b: L 160 c64 h64 -> 0 cached
    b: A 0
    b: S 64+96
    b: plan store 0+0 keys =c
    b: plan store 96+64 #7
    b: done #7 failed
    cache 0
    b: end computed 160
    c: start 130 of a b c x
    c: L 130 c0 h64 -> 64
    c: A 64
    c: S 64+66
    """
)
ODD: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("block_size", "chunk_size"), (None, 0, 1, 7, 48, 2**50)),
    **dict.fromkeys(("block_first", "matched", "count", "start", "block_seen"), (None, 0, 1, 5, 33, 2**50)),
    **dict.fromkeys(("total", "computed", "allocated", "scheduled", "epoch"), (0, 1, 31, 2**50)),
    "block_hashes": (None, b"", b"odd", hash_of("a") * 3, hash_of("x") + hash_of("a")),
    "block_after": (None, b"", b"odd", hash_of("a"), hash_of("of none")),
    "blocks_ids": ((), (2**50,), (3, 3)),
    "chunk_keys": ((), ("",), ("é" * 16,), ("ab " * 5 + "a",)),
    "chunk_key": (None, "", " " * 16),
    "hit_sources": ((), ("",), (":",), ("host:-1",), ("host:\u0663",), (f"disk:{2**50}",)),
    "cache_changes": ((), (0, 0), (2**50, -(2**50)), (-1, 1)),
    "request": ("a", "b", "of none"),
    "request_sequence": (0, 1),
    "cache_whole": (True, False),
    "transfer_id": (None, -1),
}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_events_say_there_is_a_cause_for_each_token(seed: int) -> None:
    dice = random.Random(seed)
    whole = history(STORY, chunk=32, capabilities=REPORTING, cache_identity="one")
    for _ in range(400):
        fleet = Fleet()
        causes, other = Causes(fleet), Causes(fleet)
        events = list(whole)
        for at in dice.sample(range(len(events)), dice.randint(1, 4)):
            names = sorted(ODD.keys() & set(events[at].__struct_fields__))
            name = dice.choice(names)
            events[at] = structs.replace(events[at], **{name: dice.choice(ODD[name])})
        if dice.random() < 0.3:
            dice.shuffle(events)
        for event in events:
            other.enter(structs.replace(event, engine="other"))
            causes.enter(event)
        for split in causes.breakdowns:
            assert split.is_whole, split
            assert all(part.tokens > 0 for part in split.parts)


def test_parts_that_do_not_make_up_their_prompt_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def heard() -> None:
        Detector(rules=(), on_error=lambda where, error: errors.append(f"{where}: {error}")).feed(history(RAN))

    heard()
    assert errors == []
    whole = Attribution.parts
    monkeypatch.setattr(Attribution, "parts", lambda split: whole(split)[1:])
    heard()
    assert errors[0].startswith("causes: parts do not make up the prompt of a-")


def test_names_of_blocks_have_eight_bytes() -> None:
    assert hash_of("a") == b".......a"


TELLING = """
    cache
    cache of cpu
    a: start 110 of a b c
    a: L 110 c0 h0 -> 0
    a: A 0
    cache + a b c
    a: S 0+110
    a: plan store 0+96
    cache of cpu by a + a b
    a: end computed 110
    cache 0
"""
"""A store that reports its contents as vLLM's cache does: of three chunks that were planned it has stored two."""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("b: L 128 c0 h64 -> 64\nb: A 64", "loaded:cpu 64, reset:gpu 32 (unasked), new 32"),
        ("b: L 128 c0 h64 -> 0\nb: A 0", "refused:cpu 64 (a declined), reset:gpu 32 (unasked), new 32"),
        ("reset\nb: L 128 c0 h64 -> 64\nb: A 64", "loaded:cpu 64, reset:gpu 32 (unasked), new 32"),
        (
            "cache of cpu by x - a\nb: L 128 c0 h0 -> 0\nb: A 0",
            "evicted:cpu 32 (x), stranded:cpu 32 (a), reset:gpu 32 (unasked), new 32",
        ),
        ("cache of cpu 0\nb: L 128 c0 h0 -> 0\nb: A 0", "reset:cpu 64, reset:gpu 32 (unasked), new 32"),
    ],
)
def test_a_store_may_report_its_contents_as_vllms_cache_does(then: str, said: str) -> None:
    """Then its plans say nothing of what it holds, and it needs no capability."""
    text = f"{TELLING}\nb: start 128 of a b c d\n{then}"
    assert reported(text, capabilities=None)[1:] == [said]


def test_a_store_that_starts_reporting_late_is_not_known_before() -> None:
    text = TELLING.replace("cache of cpu\n", "cache of cpu late\n", 1)
    text += "\nb: start 128 of a b c d\nb: L 128 c0 h0 -> 0\nb: A 0"
    assert "unknown" in reported(text, capabilities=None)[1]


def test_a_store_that_stops_telling_is_not_known_any_more() -> None:
    text = f"{TELLING}\ncache of cpu\nb: start 128 of a b c d\nb: L 128 c0 h64 -> 0\nb: A 0"
    assert reported(text, capabilities=None)[1] == "unknown 96 (probe), new 32"
