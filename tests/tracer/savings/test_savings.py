"""What the offload saves, on hand-made histories with known sums."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from history import history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Alloc, Event
from kvtrail.tracer.ledger.facts import tiers_of
from kvtrail.tracer.savings.counter import SavingsCounter
from kvtrail.tracer.savings.minute_sums import LAST_EPOCH, SavingsRow, StepKey
from kvtrail.tracer.savings.sums import savings_of


def counted(events: list[Event]) -> SavingsCounter:
    sums = SavingsCounter()
    detector = Detector(on_fact=sums.enter)
    detector.feed(events)
    detector.settle()
    return sums


def measures_of(text: str, *, epoch: int | None = None) -> dict[str, int]:
    """The measures of a history, over all epochs or of one."""
    summed: Counter[str] = Counter()
    for row in counted(history(text)).sums.rows():
        if epoch in (None, row.epoch):
            summed.update(row.measures)
    return dict(summed)


def some(text: str, *names: str) -> tuple[int, ...]:
    measures = measures_of(text)
    return tuple(measures.get(name, 0) for name in names)


def test_a_hit_counts_once_however_often_it_was_asked_for() -> None:
    text = "L 749 c96 h512 -> 416\nL 749 c96 h512 -> 416\nA 416\nS 512+237\nend"
    assert some(text, "lookups", "admissions", "asked", "local", "taken", "spared") == (2, 1, 749, 96, 416, 416)
    assert some(text, "lookups_unused") == (1,)
    assert some(text, "recomputed", "admissions_hidden") == (0, 0)


def test_epochs_are_counted_apart_so_that_hits_after_a_preemption_are_seen() -> None:
    text = "L 749 c0 h0 -> 0\nA 0\nS 0+749\nP\nL 750 c0 h512 -> 512\nA 512\nS 512+238\nend"
    assert measures_of(text, epoch=0)["asked"] == 749
    assert "taken" not in measures_of(text, epoch=0)
    again = measures_of(text, epoch=1)
    assert (again["asked"], again["taken"], again["spared"], again["preemptions"]) == (750, 512, 512, 1)


def test_many_epochs_share_the_last_cell() -> None:
    text = "\n".join(["L 100 c0 h0 -> 0\nA 0\nS 0+100\nP"] * 9)
    assert {row.epoch for row in counted(history(text)).sums.rows()} == {0, 1, 2, LAST_EPOCH}


def test_what_the_store_held_and_was_computed_all_the_same() -> None:
    # 256 of the 512 that the store held were taken; the rest was computed.
    assert some("L 749 c0 h512 -> 256\nA 256\nS 256+493", "spared", "recomputed") == (256, 256)
    # A full hit: the last token is always computed, and is no loss.
    assert some("L 512 c0 h512 -> 511\nA 511\nS 511+1", "spared", "recomputed") == (511, 0)
    # The load failed, and vLLM began at the beginning.
    assert some("L 749 c0 h512 -> 512 async\nA 512\nR failed\nS 0+749", "spared", "recomputed", "failed") == (
        0,
        512,
        512,
    )
    # A connector that hides its match gives no findings.
    assert some("L 749 c0 h? -> 256\nA 256\nS 256+493", "recomputed", "admissions_hidden") == (0, 1)


def test_an_answer_that_nothing_took_is_unused() -> None:
    assert some("L 749 c0 h512 -> 512\nend", "lookups_unused", "admissions") == (1, 0)
    assert some("L 749 c0 h512 -> 512\nA 0\nS 0+749\nend", "lookups_unused") == (1,)
    assert some("L 749 c0 h0 -> 0\nend", "lookups_unused") == (0,)
    assert some("L 749 c0 h512 -> 512\nA 512\nS 512+237\nend", "lookups_unused") == (0,)


def test_waiting_for_kv_is_the_time_from_the_allocation_to_the_loads_end() -> None:
    text = "L 749 c0 h512 -> 512 async\nA 512\nwait 3\nR\nA 0\nS 512+237\nend"
    waits, waited_ns, admissions = some(text, "waits", "waited_ns", "admissions")
    assert (waits, admissions) == (1, 1)
    assert waited_ns == 3_001_000_000


def test_ask_me_later_is_waiting_too() -> None:
    text = "L 749 c0 -> later\nwait 1\nL 749 c0 -> later\nwait 1\nL 749 c0 h512 -> 512\nA 512\nS 512+237"
    assert some(text, "postponed_ns", "lookups_unused") == (2_002_000_000, 0)


def test_copies_count_tokens_of_one_rank_and_the_time_of_all() -> None:
    text = "L 749 c0 h512 -> 512\nA 512\nS 512+237\nload 512\nload 512 rank 1\nstore 512+237 in 8"
    assert some(text, "load_tokens", "load_ns", "load_bytes") == (512, 20_000, 0)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (("host:448", "disk:64", "nonsense"), {"host": 448, "disk": 64}),
        (("host:448", "disk:32"), {}),
        (("host:448", "disk:96"), {}),
        ((), {}),
    ],
)
def test_tiers_are_counted_where_their_numbers_add_up(recorded: tuple[str, ...], expected: dict[str, int]) -> None:
    events = history("L 749 c0 h512 -> 512\nA 512\nS 512+237")
    assert isinstance(events[2], Alloc)
    events[2].hit_sources = recorded
    assert tiers_of(events[2]) == expected


CHUNKED = "L 4096 c0 h0 -> 0\nA 0\nS 0+2048\nwait 2\nS 2048+2048\nwait 2\nS 4096+1\nS 4097+1\nend"


def test_the_prefill_rate_is_measured_from_steps_that_follow_each_other() -> None:
    assert some(CHUNKED, "prefill", "prefill_ns") == (4096, 4_002_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "L 2048 c0 h0 -> 0\nA 0\nS 0+2048\nend\nb: L 64 c0 h0 -> 0\nwait 9\nb: A 0\nb: S 0+64",  # it may have idled
        "L 4096 c0 h0 -> 0\nA 0\nS 0+1024\nwait 2\nS 2048+2048",  # a step between was lost
        "L 64 c0 h0 -> 0\nA 0\nS 64+1\nS 65+1\nS 66+1",  # decodes
    ],
)
def test_no_rate_where_none_was_seen(text: str) -> None:
    assert some(text, "prefill", "prefill_ns") == (0, 0)


def test_any_order_of_arrival_gives_the_same_sums() -> None:
    text = (
        "L 749 c0 h512 -> 512\nL 749 c0 h512 -> 512\nA 512\nS 512+237\nP\nL 750 c96 h512 -> 416\nA 416\nS 512+238\nend"
    )
    events = history(text)
    shuffled = random.Random(3).sample(events, len(events))
    steps = {"prefill", "prefill_ns"}  # steps are measured as they come

    def sums(events: list[Event]) -> dict[StepKey, int]:
        return {cell: value for cell, value in counted(events).sums.by_step().items() if cell[-1] not in steps}

    assert sums(shuffled) == sums(events)


def test_a_missing_event_leaves_undecided_what_it_decides() -> None:
    events = history("L 749 c0 h512 -> 512\nA 512\nS 512+237\nend")
    without_alloc = [e for e in events if e.kind != "kv.alloc"]
    measures = {cell[-1] for cell in counted(without_alloc).sums.by_step()}
    assert not {"lookups_unused", "spared", "recomputed", "taken"} & measures
    # The answer may have been taken by what is missing, before the connector was asked again.
    events = history("L 749 c0 h512 -> 512\nA 512\nL 749 c0 h512 -> 512\nA 512\nS 512+237\nend")
    measures = {cell[-1] for cell in counted([*events[:2], *events[3:]]).sums.by_step()}
    assert "lookups_unused" not in measures


def test_savings_are_spared_tokens_at_the_measured_rate_of_their_own_engine() -> None:
    def row(engine: str, epoch: int, **measures: int) -> SavingsRow:
        return SavingsRow(at_s=0, engine=engine, connector="C", epoch=epoch, measures=measures)

    total = savings_of(
        [
            row("a", 0, spared=4000, taken=4000, local=1000, asked=10_000, prefill=2000, prefill_ns=10**9),
            row("a", 1, spared=1000, asked=2000, taken=1000),
            row("b", 0, spared=500, prefill=1000, prefill_ns=10**9),
            row("c", 0, spared=70),
        ]
    )
    assert total.prefill_saved_s == pytest.approx(5000 / 2000 + 500 / 1000)
    assert (total.spared, total.spared_unrated) == (5570, 70)
    assert total.hit_share == pytest.approx(5000 / 12_000)
    assert total.local_share == pytest.approx(1000 / 12_000)


def test_worth_of_nothing_is_not_known() -> None:
    total = savings_of([])
    assert total.prefill_saved_s is total.hit_share is total.load_bytes_per_s is total.prefill_tokens_per_s is None
    assert total.spared == 0
