"""Ended is ended: whatever is heard of a request after its end, of its own process or of another."""

from __future__ import annotations

import pytest
from history import history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import UNFAMILIAR
from kvtrail.tracer.events.semconv import CUT_OFF, Kind
from kvtrail.tracer.ledger import account as ledger
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.request_outcome import outcome_of

OPEN = "L 600 c0 h0 -> 512 async\nA 512 [1-19]\n"
AFTER = {
    Kind.REQUEST: "end",
    Kind.CUT_OFF: "cut off",
    Kind.LOOKUP: "L 600 c0 h0 -> 512 async",
    Kind.RANK_LOOKUP: "rank 1 h256",
    Kind.ALLOC: "A 512 [1-19]",
    Kind.SCHEDULE: "S 512+88",
    Kind.PREEMPT: "P",
    Kind.LOAD: "load 0/512",
    Kind.LOAD_ERROR: "error [1 2]",
    Kind.BLOCK_CHECK: "check loaded 3",
    Kind.STORE: "store 0+512 !OSError: full",
    Kind.LOAD_PLAN: "plan load 0+64 [1 2] #7",
    Kind.STORE_PLAN: "plan store 0+64 [1 2] #8",
    Kind.TRANSFER_END: "plan store 0+64 [1 2] #9\ndone #9 failed",
    Kind.RECEIVED: "R",
    Kind.SENT: "sent",
    Kind.LEASE: "lease 20",
    Kind.FREE: "freed expired",
    Kind.READ: "read by d",
    Kind.XFER: "xfer read failed !NIXL_ERR_REMOTE_DISCONNECT",
    Kind.STATS: "stats 600",
}
"""By its kind, an event after the end."""
MORE = ["R failed", "A 0 !Mismatch", "L 600 c0 -> !KeyError: 'x'", "end delayed", "end error"]


def test_no_entry_of_the_account_is_left_out() -> None:
    """A request that begins is another one, and what cannot be read leaves a gap."""
    assert set(ledger._ENTER) - {Kind.REQUEST_START, UNFAMILIAR} <= set(AFTER)


@pytest.mark.parametrize("end", ["end aborted", "end delayed", "end error"])
@pytest.mark.parametrize("late", [*AFTER.values(), *MORE])
def test_whatever_comes_after_the_end_it_stays_as_it_ended(end: str, late: str) -> None:
    ended = the_account(f"{OPEN}wait 3\n{end}")
    account = the_account(f"{OPEN}wait 3\n{end}\nwait 200\n{late}\nwait 5")
    for one in (ended, account):
        assert one.status == "finished"
        assert one.phases.changes()[-1][1] in (Phase.DONE, Phase.STORE)
    assert (account.outcome, account.ended_ns) == (ended.outcome, ended.ended_ns)
    assert account.waited_ns == ended.waited_ns  # it waits no longer than it lives
    for engine in EngineState:
        assert outcome_of(account.status, account.outcome, engine) is outcome_of(ended.status, ended.outcome, engine)


@pytest.mark.parametrize("late", ["R", "S 512+88", "P", "A 0"])
def test_a_request_with_a_call_that_raised_has_not_come_back(late: str) -> None:
    """Its engine has ended, and with it what a call of the connector had failed."""
    account = the_account(f"{OPEN}A 0 !Mismatch\ncut off\n{late}")
    assert (account.status, account.outcome) == ("failed", CUT_OFF)


def test_who_was_only_taken_for_ended_goes_on() -> None:
    assert the_account(f"{OPEN}cut off\nR").status == "admitted"
    assert the_account(f"{OPEN}cut off\nR\nend").status == "finished"


def the_account(text: str) -> Account:
    detector = Detector(on_fact=lambda fact, account: account.phases.enter(fact))
    detector.feed(history(text))
    (account,) = detector.accounts.values()
    return account
