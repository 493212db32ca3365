"""What the api and the pages say of hand-offs between two engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from history import goodbyes
from served_pairs import DECODE, PREFILL, REQUEST, Served, nixl, skewed

from kvtrail.dashboard.content import engines
from kvtrail.dashboard.content.request import pair


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.pipeline.close()


def test_the_fleet_shows_who_hands_over_to_whom_and_the_outcomes(served: Served) -> None:
    served.hear(nixl(f"{PREFILL}{DECODE}<d> R\nread\nsent"))
    answer = served.get("/api/fleet")
    (both,) = answer["pairs"]
    assert both["mean_wait_ns"] == pytest.approx(2e9, rel=0.1)
    assert engines.pair_rows(answer["pairs"]) == [
        {
            "Prefills": both["giver_name"],
            "Decodes": both["taker_name"],
            "Hand-offs": 1,
            "Tokens": 600,
            "Loaded": 1,
            "Failed": None,
            "Not loaded": None,
            "Declined": None,
            "Leases expired": None,
            "Mean wait": "2.00 s",
        }
    ]
    assert (both["giver"], both["taker"], answer["kept"]) == ("engine", "d", [])


@pytest.mark.parametrize("is_claimed_first", [True, False])
def test_a_lease_that_ran_out_is_that_of_the_pair_whichever_side_is_heard_first(
    served: Served, is_claimed_first: bool
) -> None:
    events = nixl(f"{PREFILL}{DECODE}wait 30\nfreed expired\nsent")
    sides = [[each for each in events if (each.engine == "d") is is_decode] for is_decode in (True, False)]
    for side in sides if is_claimed_first else sides[::-1]:
        served.hear(side)
    (pair,) = served.get("/api/fleet")["pairs"]
    assert (pair["taker"], pair["handoffs"], pair["outcomes"]) == ("d", 1, {"expired": 1})


def test_a_lease_that_expired_unclaimed_belongs_to_no_engine(served: Served) -> None:
    served.hear(nixl(f"{PREFILL}wait 30\nfreed expired\nsent"))
    answer = served.get("/api/fleet")
    assert [(each["giver"], each["taker"], each["outcomes"]) for each in answer["pairs"]] == [
        ("engine", None, {"expired": 1})
    ]
    (row,) = engines.pair_rows(answer["pairs"])
    assert (row["Decodes"], row["Leases expired"]) == ("nobody", 1)


@pytest.mark.parametrize(
    ("decode", "kept_for", "words"),
    [
        ("", None, "nobody has claimed it"),
        (DECODE, "d", "a request that is to load it"),
        (f"{DECODE}<d> R", "d", "loaded; to be given back"),
        (f"{DECODE}<d> end aborted", "d", "nobody: its request has ended"),
    ],
)
def test_the_fleet_shows_what_an_engine_keeps_for_whom(
    served: Served, decode: str, kept_for: str | None, words: str
) -> None:
    served.hear(nixl(PREFILL + decode))
    answer = served.get("/api/fleet")
    (kept,) = answer["kept"]
    (row,) = engines.kept_rows(answer["kept"])
    assert (kept["engine"], kept["taker"], kept["tokens"]) == ("engine", kept_for, 600)
    assert (row["Which is"], row["Blocks"], row["Of its pool"]) == (words, 19, 0.38)


@pytest.mark.parametrize("skew_s", [0, -7200, 0.004, 3600])
@pytest.mark.parametrize("side", ["gives", "takes"])
def test_messages_bound_how_far_the_clocks_of_a_pair_are_apart(served: Served, skew_s: float, side: str) -> None:
    """Whatever the clocks say: the read lasts 2 s, so that each bound is as far from the truth."""
    served.hear(skewed(nixl(f"{PREFILL}{DECODE}<d> R\nread\nsent"), skew_s))
    answer = served.get(f"/api/requests/{REQUEST}", engine="engine" if side == "gives" else "d")
    (link,) = answer["handoffs"]
    least, most = link["ahead_least_ns"], link["ahead_most_ns"]
    assert least <= skew_s * 1e9 <= most
    assert most - least < 4.1e9
    assert link["ahead_ns"] == (0 if least <= 0 <= most else (least + most) // 2)
    assert (link["side"], link["takers"], link["expired"]) == (side, 1, False)
    assert link["kept_to_ns"] - link["kept_from_ns"] == pytest.approx(2e9, rel=0.1)


def test_a_report_that_may_be_anothers_bounds_nothing(served: Served) -> None:
    twice = DECODE + DECODE.replace("<d>", "<other>")
    served.hear(nixl(f"{PREFILL}{twice}<d> R\nread\n<other> R\nsent"))
    (link,) = served.get(f"/api/requests/{REQUEST}", engine="d")["handoffs"]
    assert (link["takers"], link["ahead_least_ns"]) == (2, None)


def test_nothing_is_known_of_the_clocks_where_a_clock_was_set_meanwhile(served: Served) -> None:
    events = nixl(f"{PREFILL}{DECODE}<d> R\nread\nsent")
    served.hear([*skewed(events[:-3], 0), *skewed(events[-3:], -600)])
    (link,) = served.get(f"/api/requests/{REQUEST}", engine="d")["handoffs"]
    assert (link["ahead_least_ns"], link["ahead_most_ns"], link["ahead_ns"]) == (None, None, 0)


def test_a_dead_engine_keeps_nothing_any_more(served: Served) -> None:
    events = nixl(PREFILL + DECODE)
    served.hear(events)
    (link,) = served.get(f"/api/requests/{REQUEST}", engine="d")["handoffs"]
    assert pair.kept_text(link) == "Its blocks are still kept."
    served.hear([each for each in goodbyes(events) if each.engine == "engine"])
    (link,) = served.get(f"/api/requests/{REQUEST}", engine="d")["handoffs"]
    assert pair.kept_text(link).endswith("until its engine ended.")
