"""What was computed although a cache had held it: the sentence, the rows, and where they lead."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.dashboard.content import waste

RED = "5a17c0ffee5a17c0"
S = 10**9
RATED = (
    "**2,000 of 8,000 computed tokens (25.0 %) had been held by a cache before: 4.00 s of prefill**, in 3 admissions."
)


def group(tokens: int, *, seconds: float | None = None, unrated: int = 0, **labels: Any) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "admissions": 3,
        "seconds": seconds,
        "unrated": unrated,
        "start": 64,
        "last_ns": 90 * S,
        **labels,
    }


ANSWER = {
    "since_ns": 0, "until_ns": 120 * S, "covered_from_ns": 0, "computed": 8000, "whole": group(2000, seconds=4.0),
    "by_tenant": [group(1500, seconds=3.0, tenant=RED, tenant_name="Acme"), group(500, tenant="plain", tenant_name=None)],
    "by_model": [group(2000, seconds=4.0, model="")],
    "by_engine": [group(2000, seconds=4.0, engine="e-1")],
    "by_cause": [group(1200, cause="evicted", tier="gpu"), group(800, cause="evicted", tier="host")],
    "by_prefix": [group(1500, seconds=3.0, prefix="0011223344556677")],
    "requests": [group(900, engine="e-1", request="r-1", prefix="")],
    "engine_names": {"e-1": "alpha"},
}  # fmt: skip


def answer(**changed: Any) -> dict[str, Any]:
    return {**ANSWER, **changed}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, RATED),
        ({"whole": group(0)}, "**Nothing that a cache had held was computed again**, by what is recorded."),
        (
            {"whole": group(2000, unrated=2000)},
            "**2,000 of 8,000 computed tokens (25.0 %) had been held by a cache before**, in 3 admissions. Not"
            " every engine has shown how fast it prefills.",
        ),
        (
            {"whole": group(2000, seconds=1.0, unrated=1)},
            "**2,000 of 8,000 computed tokens (25.0 %) had been held by a cache before: 1.00 s of prefill**, in 3 admissions."
            " The seconds leave out 1 token: Not every engine has shown how fast it prefills.",
        ),
        (
            {"covered_from_ns": 61 * S},
            f"{RATED} There is too much for one answer: this is what was admitted from 00:01:01 UTC on.",
        ),
    ],
)  # fmt: skip
def test_the_sentence_says_how_much_it_is_and_what_the_numbers_leave_out(changed: dict[str, Any], said: str) -> None:
    assert waste.sentence(answer(**changed)) == said


def test_tenants_have_names_shares_and_seconds() -> None:
    assert waste.tenant_rows(ANSWER) == [
        {"Tenant": "Acme", "Tokens": 1500, "Share": 0.75, "Prefill": 3.0, "Admissions": 3},
        {"Tenant": "without salt or adapter", "Tokens": 500, "Share": 0.25, "Prefill": None, "Admissions": 3},
    ]


def test_a_row_narrows_the_page_down_and_a_request_opens() -> None:
    given = {"from": "now-1h", "to": "now", "tenant": RED}
    assert waste.narrowed(ANSWER, "prefix", given) == [("savings", {**given, "prefix": "0011223344556677"})]
    assert [link["tenant"] for _, link in waste.narrowed(ANSWER, "tenant", given)] == [RED, "plain"]
    assert waste.narrowed_to(ANSWER, {"tenant": RED, "prefix": "0011"}) == "Only tenant Acme, prefix 0011: show all"
    (row,) = waste.request_rows(ANSWER)
    assert (row["Request"], row["Engine"], row["Tokens"], row["Prefix"]) == ("r-1", "alpha", 900, "not recorded")
    (prefix,) = waste.prefix_rows(ANSWER)
    assert (prefix["Prefix"], prefix["Lost from token"], prefix["Share"]) == ("0011223344556677", 64, 0.75)
