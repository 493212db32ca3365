"""Both engines of a hand-off on one axis: what is drawn where, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_pairs import DECODE, PREFILL, REQUEST, Served, nixl, skewed

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.request import pair, phases
from kvtrail.dashboard.content.request.account import since_arrival_ms

FIRST_TOKEN = "<d> A 0\n<d> S 599+1\nwait 1\n<d> S 600+1\n<d> end"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.pipeline.close()


def pair_shown(served: Served, text: str, *, skew_s: float = 0, engine: str = "d") -> pair.Pair:
    """The pair on the page of the request of an engine."""
    served.hear(skewed(nixl(text), skew_s))
    sides: list[tuple[Row, list[phases.Stretch]]] = []
    for each in sorted(("engine", "d"), key=lambda name: name != engine):
        timeline = served.get(f"/api/requests/{REQUEST}", engine=each)
        lanes = served.get("/api/lanes", **phases.question(timeline["request"], now_ns=timeline["request"]["last_ns"]))
        sides.append((timeline, phases.stretches(lanes, timeline["request"])))
    (own, parts), (other, others) = sides
    return pair.pair_of(own, parts, other, others, own["handoffs"][0])


@pytest.mark.parametrize("engine", ["d", "engine"])
@pytest.mark.parametrize("skew_s", [0, -3600, 86_400])
def test_the_time_to_the_first_token_is_split_as_it_was_spent(served: Served, skew_s: float, engine: str) -> None:
    """The same on both pages, and whatever the clocks say: only the hand-off depends on how they are aligned."""
    story = f"{PREFILL}wait 3\n{DECODE}<d> R\nread\nsent\n{FIRST_TOKEN}"
    known = pair_shown(served, story, skew_s=skew_s, engine=engine)
    parts = {part.phase: part.end - part.begin for part in pair.stages(known)}
    assert list(parts) == list(palette.STAGE)
    exact = {"queue to prefill": 3, "prefill": 2, "queue to load": 4, "load": 2002, "first token": 1003}
    assert {name: round(parts[name]) for name in exact} == pytest.approx(exact, abs=3)
    assert re.search(r"took the most of it, \d+ %\.", pair.first_token_text(pair.stages(known), known.link))
    uncertain_ms = (known.link["ahead_most_ns"] - known.link["ahead_least_ns"]) / 1e6
    assert parts["hand-off"] == pytest.approx(3000, abs=uncertain_ms if skew_s else 3)


def bars(known: pair.Pair) -> dict[str, list[dict[str, Any]]]:
    chart = pair.pair_chart(known, pair.stages(known), dark=False).to_dict()
    rows: dict[str, list[dict[str, Any]]] = {}
    for bar in chart["layer"][0]["data"]["values"]:
        rows.setdefault(bar["row"], []).append(bar)
    return rows


@pytest.mark.parametrize(
    ("after", "what", "sentence"),
    [
        ("<d> R\nread\nsent", "kept until they had been read", "until they had been read"),
        (
            "wait 30\nfreed expired\nsent\nread",
            "kept until the lease ran out",
            "until the lease ran out. A reader reported",
        ),
        ("<d> R", "still kept", "still kept"),
    ],
)
def test_the_kept_blocks_are_a_bar_that_ends_with_what_ended_it(
    served: Served, after: str, what: str, sentence: str
) -> None:
    known = pair_shown(served, f"{PREFILL}{DECODE}{after}")
    (kept,) = bars(known)["kept"]
    assert kept["what"] == what
    assert sentence in pair.kept_text(known.link)
    assert kept["from"] == pytest.approx(since_arrival_ms(known.given, known.link["kept_from_ns"]))


def test_both_rows_are_on_the_axis_of_the_engine_that_prefills(served: Served) -> None:
    known = pair_shown(served, f"{PREFILL}wait 3\n{DECODE}<d> R\nread\nsent\n{FIRST_TOKEN}")
    rows = bars(known)
    assert rows["prefill"][0]["from"] == 0
    assert rows["decode"][0]["from"] == pytest.approx(known.shift)
    assert known.shift == pytest.approx(3000, abs=20)
    assert pair.pair_chart(known, [], dark=True).to_json() == pair.pair_chart(known, [], dark=True).to_json()


def link(least: int | None, most: int | None, taken: int = 0) -> Row:
    return {"ahead_least_ns": least, "ahead_most_ns": most, "ahead_ns": taken}


@pytest.mark.parametrize(
    ("known", "parts"),
    [
        (
            link(-138_000_000, 84_000_000),
            ["at least 138 ms behind and at most 84 ms ahead", "as if they agreed"],
        ),
        (
            link(10**9, 3 * 10**9, 2 * 10**9),
            ["at least 1.00 s ahead and at most 3.00 s ahead", "drawn as 2.00 s ahead"],
        ),
        (link(None, 5_000_000), ["is at most 5 ms ahead."]),
        (link(5_000_000, None, 5_000_000), ["is at least 5 ms ahead."]),
        (link(None, None), ["No message shows"]),
    ],
)
def test_the_page_says_how_the_axes_are_aligned_and_how_exactly(known: Row, parts: list[str]) -> None:
    text = pair.alignment(known)
    assert [part for part in parts if part not in text] == [], text


def test_what_each_engine_computed_is_a_row(served: Served) -> None:
    story = f"{PREFILL}{DECODE}<d> R\nread\nsent\n{FIRST_TOKEN}"
    known = pair_shown(served, story)
    rows = pair.computed_rows(known)
    assert [(row["Prompt"], row["From its cache"], row["Loaded"], row["Computed"]) for row in rows] == [
        (600, 0, 0, 600),
        (600, 0, 599, 1),
    ]


@pytest.mark.parametrize("engine", ["d", "engine"])
@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("<d> R\nread\nsent\n" + FIRST_TOKEN, ""),
        ("<d> R failed\n<d> S 0+600\n<d> end", "Computed again: 599 tokens {}, and its load failed."),
        (
            "<d> R failed\n<d> S 0+600\n<d> end\nwait 30\nfreed expired\nsent",
            "Computed again: 599 tokens {}, and its load failed.",
        ),
        (
            "wait 30\nfreed expired\nsent\nread\n<d> R failed\n<d> S 0+600\n<d> end",
            "Computed again: 599 tokens {}, and its load failed.",
        ),
    ],
    ids=["loaded", "failed", "expired, too", "expired before"],
)
def test_what_is_computed_again_is_said_with_its_cause(served: Served, after: str, said: str, engine: str) -> None:
    """On both pages."""
    story = f"{PREFILL}{DECODE}{after}".replace("of a\n    <d> L", "of a from engine\n    <d> L")
    known = pair_shown(served, story, engine=engine)
    assert pair.again_text(known) == said.format("handed over by engine")
