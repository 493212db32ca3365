"""Bugs of public reports are bugs of the connectors in which they are planted, and are found."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted import reported_bugs
from planted.reported_bugs import REPORTED_BUGS

from kvtrail.connector.simulate.check.session import check

MISSED = {
    "LookupsCountAsStores": "it only wastes work: what a request has not stored is a later miss",
    "CursorMovesWithoutASlot": "it only wastes work, too",
    "LeaseOfASaltKept": "requests with a salt would have to wait for a prefetch",
    "LoadsWithoutAnAllocation": "vLLM's MultiConnector names no blocks to a child that is to load nothing",
}
"""Why a session does not find a bug."""


def test_each_bug_cites_its_report() -> None:
    assert len(set(REPORTED_BUGS)) == 20
    for name in REPORTED_BUGS:
        assert re.search(r"\shttps://github\.com/\S+/(issues|pull)/\d+$", getattr(reported_bugs, name).__doc__), name


@pytest.mark.parametrize("bug", ["DropsBeforeItLoads", "LeaseKeptWithoutALoad"])
def test_one_run_of_what_happens_together_shows_a_bug_of_either_connector(bug: str) -> None:
    checked = check(f"planted.reported_bugs:{bug}", profiles=["combined"], steps=None, runs=1, shrink_tries=0)
    assert checked.found


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in REPORTED_BUGS if name not in MISSED])
def test_a_bug_is_found_without_a_hint(bug: str) -> None:
    checked = check(f"planted.reported_bugs:{bug}", steps=20_000, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"
