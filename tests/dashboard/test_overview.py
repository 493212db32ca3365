"""The first page: sentences that lead on, how much there was, and how to begin."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from history import START_NS

from kvtrail.connector.recording import environment
from kvtrail.dashboard.content import overview, text
from kvtrail.dashboard.content.time_range import TimeRange

HOUR_NS = 3600 * 10**9
SHOWN = TimeRange(START_NS, START_NS + HOUR_NS)


def said(**changes: Any) -> dict[str, Any]:
    return {"kind": "findings", "level": "warning", "text": "13 findings", "page": "findings", "query": {}, **changes}


def test_a_sentence_leads_to_its_page_in_the_range_that_is_shown() -> None:
    request = said(level="lost", text="Engine a died", page="request", query={"id": "r-1", "engine": "a"})
    rule = said(query={"rule": "no-token-left", "from": "now-2h"})
    first, second = overview.statements({"statements": [request, rule]}, SHOWN)
    assert (first["level"], first["page"], first["query"]) == ("lost", "request", {"id": "r-1", "engine": "a"})
    assert second["query"] == {"from": "now-2h", "to": SHOWN.address["to"], "rule": "no-token-left"}


def test_a_level_of_a_newer_tracer_is_a_warning() -> None:
    (statement,) = overview.statements({"statements": [said(level="odd", query=None)]}, SHOWN)
    assert (statement["level"], statement["query"]) == ("warning", SHOWN.address)


SUMS = {
    "asked": 12_345, "local": 345, "handed": 0, "spared": 4000, "prefill_saved_s": None, "hit_share": 0.4, "waited_s": 1.0,
    "postponed_s": 0.5, "waits": 2, "load_tokens": 512, "preemptions": 3,
}  # fmt: skip


def cards(*, outcomes: dict[str, int] | None = None, **sums: Any) -> dict[str, tuple[str, str]]:
    """The cards' values and notes, of an hour with these sums."""
    rules = [{"findings": number, "not_known": {"findings": number}} for number in (4, 3)]
    status = {"outcomes": outcomes or {}, "rules": rules}
    found = overview.cards(status, {"worth": {**SUMS, **sums}})
    return {name: (value, note) for name, value, note, _ in found}


def test_how_much_there_was_is_that_of_the_range() -> None:
    found = cards(outcomes={"finished": 53, "running": 2, "failed": 1, "lost": 6})
    assert found["Requests"] == ("62", "2 open, 1 failed, 6 lost"), "the parts add up, and one query has them all"
    assert found["Hit rate"] == ("40.0 %", "of 12.3 k tokens")
    assert found["Prefill saved"] == ("33.3 %", "4,000 tokens spared")
    assert found["Waited for KV"] == ("1.50 s", "in 2 loads")
    assert found["Findings"] == ("7", "of 2 rules")


def test_a_card_of_zero_is_left_out() -> None:
    assert cards(asked=0, spared=0, waited_s=0.0, postponed_s=0.0, preemptions=0).keys() == {"Findings"}


@pytest.mark.parametrize(("number", "shown"), [(0, "0"), (999, "999"), (12_345, "12.3 k"), (4_560_000, "4.56 M")])
def test_large_counts_are_short(number: int, shown: str) -> None:
    assert text.short(number) == shown


def test_the_settings_to_copy_are_those_that_a_recorder_takes() -> None:
    line = overview.engine_settings("http://10.0.0.7:4318")
    words = shlex.split(line.replace("\\\n", ""))  # as a shell joins lines
    variables = dict(word.split("=", 1) for word in words[: words.index("vllm")])
    taken = environment.usable(variables)
    assert taken == variables, "none of them is refused"
    assert environment.protocol(taken) == "http/protobuf"
