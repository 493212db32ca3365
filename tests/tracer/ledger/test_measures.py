"""How long a request was in each phase, and its tokens by cause, from histories in which a line takes a millisecond."""

from __future__ import annotations

import pytest
from history import history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.measures import measures_of

BEGUN = "start 100\nL 100 c0 h0 -> 0\nA 0\n"


def measured(text: str) -> tuple[Account, dict[str, dict[str, int]]]:
    detector = Detector(on_fact=lambda fact, account: account.phases.enter(fact))
    detector.feed(history(text))
    (account,) = detector.accounts.values()
    return account, measures_of(account, account.as_dict()["causes"])


def seconds(text: str) -> dict[str, int]:
    """The measures of time in whole seconds, without those below one."""
    return {name: round(ns / 1e9) for name, ns in measured(text)[1]["times"].items() if ns >= 5e8}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{BEGUN}S 0+60 []\nwait 2\nS 60+40 []\nwait 3\nS 100+1 []\nwait 5\nend",
         {"prefill": 5, "decode": 5, "first_token": 5, "duration": 10}),
        (f"{BEGUN}S 0+100 []\nwait 4\nend", {"prefill": 4, "first_token": 4, "duration": 4}),
        (f"{BEGUN}S 0+100 []\nwait 4\nend aborted", {"prefill": 4, "duration": 4}),
        (f"{BEGUN}S 0+100\nwait 4\nend", {"running": 4, "duration": 4}),
        ("start 100\nwait 2\nL 100 c0 -> later\nwait 3\nL 100 c0 h64 -> 64 async\nA 64\nwait 4\nR\nS 64+36 []\nend",
         {"queued": 2, "lookup": 3, "load_wait": 4, "first_token": 9, "duration": 9}),
        (f"{BEGUN}S 0+100 []\nwait 1\nS 100+1 []\nP\nwait 6\nL 101 c0 h0 -> 0\nA 0\nS 0+101 []\nwait 2\nS 101+1 []\nend",
         {"prefill": 3, "preempted": 6, "first_token": 1, "duration": 9}),
        # What has not ended is not measured, as it may become any longer.
        (f"{BEGUN}wait 7", {}),
        (f"{BEGUN}S 0+100 []\nwait 3\nS 100+1 []\nwait 9", {"prefill": 3, "first_token": 3}),
    ],
)  # fmt: skip
def test_the_time_in_each_phase_and_to_the_first_token(text: str, expected: dict[str, int]) -> None:
    assert seconds(text) == expected


def test_tokens_by_cause_add_up_over_all_admissions() -> None:
    account, measures = measured(
        "start 100 as lora-a\nL 100 c32 h64 -> 32\nA 32\nS 64+36\nP\nL 100 c0 h64 -> 64\nA 64\nS 64+36"
    )
    assert measures["tokens"]["held"] == 32
    assert measures["tokens"]["loaded"] == 96
    assert sum(measures["tokens"].values()) == 200
    assert account.identity == "lora-a"


@pytest.mark.parametrize(("preemptions", "recomputed"), [(0, 0), (1, 101), (2, 101 + 70), (3, 101 + 70 + 103)])
def test_recomputed_tokens_of_several_preemptions_are_summed_up(preemptions: int, recomputed: int) -> None:
    """All but the last token of the request, less those that a cache held."""
    again = (
        "P\nL 102 c0 h0 -> 0\nA 0\nS 0+102\n",
        "P\nL 103 c32 h0 -> 0\nA 0\nS 32+71\n",
        "P\nL 104 c0 h0 -> 0\nA 0\nS 0+104\n",
    )
    account, _ = measured(f"{BEGUN}S 0+100\nS 100+1\n{''.join(again[:preemptions])}end")
    assert account.recomputed == recomputed
