"""Two requests side by side, on histories judged by the tracer."""

from __future__ import annotations

from test_request import timeline_of

from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.request import compare
from kvtrail.dashboard.content.request.phases import Stretch

HIT = "L 750 c0 h512 -> 512\nA 512\nS 512+238\nend"
MISS = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nP\nL 750 c0 h512 -> 512"
REFUSED = "L 750 c512 h512 -> 0 healed 512\nL 750 c0 h512 -> 512\nA 512\nS 512+238\nend"


def side(text: str, **ms: float) -> compare.Side:
    parts = [Stretch(phase.replace("_", " "), 0.0, long) for phase, long in ms.items()]
    return compare.Side(timeline_of(text), parts)


def aspects(a: compare.Side, b: compare.Side) -> dict[str, tuple[str, str]]:
    return {row[""]: (row["A"], row["B"]) for row in compare.rows(a, b)}


def test_the_same_story_has_no_difference() -> None:
    other = side(HIT.replace("A 512", "A 512 [1-16]"))  # other blocks are no difference
    assert compare.rows(side(HIT), other) == []


def test_what_it_means_comes_first() -> None:
    found = aspects(side(HIT), side(MISS))
    assert [*found] == ["Outcome", "The connector's answers", "Where the prompt came from"]
    assert found["The connector's answers"] == (
        "512 of 750 tokens",
        "0 of 750 tokens; 512 of 750 tokens after preemption 1",
    )


def test_refused_answers_are_not_passed_over() -> None:
    found = aspects(side(REFUSED), side(HIT))
    assert found["Refused answers"] == ("1 answer refused by the guard", "none")


def test_ranks_have_rows_of_their_own_where_there_are_several() -> None:
    one, two = (timeline_of(f"L 750 c0 h512 -> 512\nA 512\nload 512{more}") for more in ("", "\nload 512 rank 1"))
    rows = [
        request_charts.over_time(each, [], dark=False).to_dict()["layer"][1]["encoding"]["y"]["sort"]
        for each in (one, two)
    ]
    assert rows[1] == ["llm_request", "arrival", "lookup", "allocation", "load, rank 0", "load, rank 1"]
    assert rows[0][-1] == "load"
