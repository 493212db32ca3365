"""Two requests side by side, on histories judged by the tracer."""

from __future__ import annotations

from test_request import timeline_of

from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.request import compare
from kvtrail.dashboard.content.request.phases import Stretch

HIT = "L 750 c0 h512 -> 512\nA 512\nS 512+238\nend"
MISS = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nP\nL 750 c0 h512 -> 512"
LONGER = HIT.replace("750", "760").replace("238", "248")
REFUSED = "L 750 c512 h512 -> 0 healed 512\nL 750 c0 h512 -> 512\nA 512\nS 512+238\nend"


def side(text: str, **ms: float) -> compare.Side:
    parts = [Stretch(phase.replace("_", " "), 0.0, long) for phase, long in ms.items()]
    return compare.Side(timeline_of(text), parts)


def names(a: compare.Side, b: compare.Side) -> list[str]:
    return [each.name for each in compare.differences(a, b)]


def test_the_same_story_has_no_difference() -> None:
    other = side(HIT.replace("A 512", "A 512 [1-16]"))  # other blocks are no difference
    assert names(side(HIT), other) == []


def test_a_longer_prompt_alone_is_said_last_and_is_no_other_answer() -> None:
    assert names(side(HIT), side(LONGER)) == ["Prompt's length"]


def test_what_it_means_comes_first() -> None:
    found = compare.differences(side(HIT), side(MISS))
    assert [each.name for each in found] == [
        "Outcome",
        "The connector's answers",
        "Where the prompt came from",
    ]
    answers = found[1]
    assert answers.a.text == "512 of 750 tokens"
    assert answers.b.text == "0 of 750 tokens; 512 of 750 tokens after preemption 1"
    assert (answers.a.step, answers.b.step) == (3, 3)  # vLLM's own span is the first step


def test_refused_answers_are_not_passed_over() -> None:
    found = {each.name: each for each in compare.differences(side(REFUSED), side(HIT))}
    assert found["Refused answers"].a.text == "1 answer refused by the guard"
    assert found["Refused answers"].b.text == "none"
    assert list(found).index("Refused answers") < 2


def test_ranks_have_rows_of_their_own_where_there_are_several() -> None:
    one, two = (timeline_of(f"L 750 c0 h512 -> 512\nA 512\nload 512{more}") for more in ("", "\nload 512 rank 1"))
    rows = [
        request_charts.by_step(each, at=1, dark=False).to_dict()["layer"][1]["encoding"]["y"]["sort"]
        for each in (one, two)
    ]
    assert rows[1] == ["llm_request", "arrival", "lookup", "allocation", "load, rank 0", "load, rank 1"]
    assert rows[0][-1] == "load"
