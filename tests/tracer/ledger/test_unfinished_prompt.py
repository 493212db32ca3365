"""How a request that ended before all of its prompt was computed is explained: what was reused, computed, and neither."""

from __future__ import annotations

from typing import Any

import pytest
from history import goodbyes, history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.cause_words import headline, sentence

SEED = "start 750\nL 750 c0 h0 -> 0\nA 0 [1-24]\nS 0+384 []\n"
TAKES = "start 330\ntakes h1 330/330 of a from p\nL 330 c0 -> 330 async\nA 330 [1-11]\n"
ERR = "NIXL_ERR_REMOTE_DISCONNECT"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SEED + "cut off", "384 tokens of 750 were computed before its engine ended: "),
        (SEED + "P\nL 750 c0 h0 -> !AssertionError: 3\ncut off",
         "384 tokens of 750 were computed before it was preempted: "),
        (SEED + "end aborted computed 384", "384 tokens of 750 were computed before it was aborted: "),
        ("start 750\nL 750 c0 h0 -> 0\nA 0\nS 0+384\ncut off",  # at level basic only the first step is recorded
         "At most 750 tokens of 750 were computed before its engine ended: "),
        ("start 750\nL 750 c0 h0 -> 0\nA 0 [1-24]\ncut off", "None of it was computed before its engine ended."),
        (TAKES + "end aborted computed 330", "None of it was computed before it was aborted."),
        (TAKES + f"end error\nxfer read failed !{ERR}\nerror [1-11]\nR failed", "None of it was computed before it failed."),
        # What was computed in full, or of which nobody knows that it ended.
        (SEED + "S 384+366 []\ncut off", "750 tokens of 750 were computed: "),
        (SEED + "S 384+366 []\nend", "750 tokens of 750 were computed: "),
        (SEED, "750 tokens of 750 were computed: "),
        ("start 750\nL 750 c0 h0 -> 0\nA 0\nS 0+384\nP\nL 760 c0 h0 -> 0\nA 0\nS 0+760\nend",  # it had output
         "750 tokens of 750 were computed: "),
    ],
)  # fmt: skip
def test_only_what_was_computed_is_said_to_have_been(text: str, said: str) -> None:
    first, *_ = explained(text)
    assert headline(first).startswith(said)
    assert sum(part["tokens"] for part in first["parts"]) == first["total"]


def test_a_load_that_failed_after_the_end_is_told_with_its_reason() -> None:
    (entry,) = explained(TAKES + f"end error\nxfer read failed !{ERR}\nerror [1-11]\nR failed")
    told = [sentence(part, at_ns=entry["at_ns"]) for part in entry["parts"]]
    assert told == [f"handed over by p, and its load failed: {ERR}", "not computed before it failed"]


def test_a_load_of_which_no_end_is_heard_is_not_said_to_have_loaded() -> None:
    for end, loaded in (("end aborted", False), ("cut off", False), ("end aborted\nR", True), ("R\nend aborted", True)):
        (entry,) = explained(TAKES + end)
        assert ("loaded" in {part["cause"] for part in entry["parts"]}) is loaded, end


def explained(text: str) -> list[dict[str, Any]]:
    detector = Detector()
    events = history(text, connector="NixlConnector")
    detector.feed([*events, *goodbyes(events)] if "cut off" in text else events)
    (account,) = detector.accounts.values()
    causes: list[dict[str, Any]] = account.as_dict()["causes"]
    return causes
