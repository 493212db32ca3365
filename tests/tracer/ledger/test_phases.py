"""What a request was doing when, from histories in the little language: a line, a millisecond."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from history import START_NS, history

from kvtrail.tracer.events.events import Event, Store
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.phases import MAX_CHANGES, Phase, Phases


def phases(text: str) -> Phases:
    return phases_of(history(text))


def phases_of(events: Sequence[Event]) -> Phases:
    account = Account("engine", "r")
    for event in events:
        if (fact := account.apply(event)) is not None:
            account.phases.enter(fact)
    return account.phases


def names(text: str) -> list[str]:
    return [phase.name.lower() for _, phase in phases(text).changes()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L 100 c0 h0 -> 0", ["queued", "lookup", "queued"]),
        ("L 100 c0 -> later", ["queued", "lookup"]),
        ("L 100 c0 -> later\nL 100 c0 h64 -> 64", ["queued", "lookup", "queued"]),
        ("L 100 c0 h0 -> 0\nA 0\nS 0+100", ["queued", "lookup", "queued", "running"]),
        ("L 100 c0 h64 -> 64 async\nA 64\nR\nA 0", ["queued", "lookup", "queued", "waiting", "queued"]),
        ("L 100 c0 h0 -> 0\nA 0\nS 0+60 [1]\nS 60+40 [2]\nS 100+1 []\nS 101+1 []\nend",
         ["queued", "lookup", "queued", "prefill", "decode", "done"]),
        ("L 100 c0 h0 -> 0\nA 0\nS 0+100\nP\nL 100 c0 h64 -> 64", 
         ["queued", "lookup", "queued", "running", "preempted", "lookup", "preempted"]),
        ("L 100 c0 h0 -> 0\nA 0\nS 0+100\nend delayed\nsent", ["queued", "lookup", "queued", "running", "store", "done"]),
        ("L 100 c0 h64 -> 64 async\nA 64\nend aborted\nR", ["queued", "lookup", "queued", "waiting", "done"]),
        ("L 100 c0 h64 -> 64 async\nA 64\nend delayed\nR",
         ["queued", "lookup", "queued", "waiting", "store", "done"]),
        ("@a L 100 c0 h64 -> 64 async\n@b L 100 c0 h0 -> 0\n@a A 64\n@b A 0\n@b R\n@a R\nS 64+36",
         ["queued", "lookup", "queued", "lookup", "queued", "waiting", "queued", "running"]),
        ("L 100 c0 h64 -> 64\nA 64 !Mismatch", ["queued", "lookup", "queued", "failed"]),
        ("L 100 c0 h64 -> 64 async\nA 64 !Mismatch", ["queued", "lookup", "queued", "failed"]),
    ],
)  # fmt: skip
def test_phases_follow_the_calls(text: str, expected: list[str]) -> None:
    assert names(text) == expected


def test_what_the_level_does_not_record_is_not_made_up() -> None:
    """A chunk of a prompt at level basic: it is not recorded when the prompt was done."""
    assert names("L 100 c0 h0 -> 0\nA 0\nS 0+60\nstore 0+32 in 1\nend")[-2:] == ["running", "done"]


def test_a_store_shows_where_the_prompt_was_done_in_whatever_order_it_comes() -> None:
    events = history("L 100 c0 h0 -> 0\nA 0\nS 0+100\nstore 0+100 in 4\nend")
    orders = [events, [e for e in events if isinstance(e, Store)] + [e for e in events if not isinstance(e, Store)]]
    for order in orders:
        changes = phases_of(order).changes()
        assert [phase.name for _, phase in changes[-3:]] == ["PREFILL", "DECODE", "DONE"]
        (store,) = (e for e in events if isinstance(e, Store))
        assert changes[-2][0] == store.end_ns


def test_loads_stores_and_numbered_transfers_have_both_ends() -> None:
    request_phases = phases("L 100 c0 h64 -> 64\nA 64\nplan load 0+64 #7\nload 32\ndone #7\nplan store 0+32 #8")
    begin_ns = START_NS + 3_000_000 + 10_000
    assert request_phases.transfers() == [
        (begin_ns, START_NS + 5_010_000, Phase.LOAD),
        (START_NS + 4_000_000, START_NS + 4_010_000, Phase.LOAD),
    ]


def test_a_request_that_never_rests_keeps_its_longest_phases() -> None:
    rounds = "\n".join(["S 0+10", "P"] * MAX_CHANGES)
    request_phases = phases(f"L 100 c0 h0 -> 0\nA 0\nwait 60\n{rounds}\nend")
    changes = request_phases.changes()
    assert len(changes) <= MAX_CHANGES
    assert Phase.QUEUED in [phase for _, phase in changes], "the minute in which it queued"
    assert changes[-1][1] is Phase.DONE
    assert changes == sorted(changes)
    stores = phases("L 9 c0 h0 -> 0\n" + "store 0+1 in 1\n" * (MAX_CHANGES * 3))
    assert MAX_CHANGES // 2 <= len(stores.transfers()) <= MAX_CHANGES
