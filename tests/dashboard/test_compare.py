"""Two requests side by side, on histories judged by the tracer."""

from __future__ import annotations

from test_request import timeline_of

from kvtrail.dashboard.content import compare, request, request_charts
from kvtrail.dashboard.content.phases import Stretch

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
    assert all(row[""] == "" for row in compare.step_rows(timeline_of(HIT), other.timeline))


def test_a_longer_prompt_alone_is_said_last_and_is_no_other_answer() -> None:
    assert names(side(HIT), side(LONGER)) == ["Prompt's length"]


def test_what_it_means_comes_first() -> None:
    found = compare.differences(side(HIT), side(MISS))
    assert [each.name for each in found] == [
        "Outcome",
        "The connector's answers",
        "Preemptions",
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


def test_steps_are_beside_those_after_the_same_preemption() -> None:
    short = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nP\nL 750 c0 h512 -> 512"
    long = "L 750 c0 h0 -> 0\nA 0\nS 0+400\nS 400+350\nS 750+1\nP\nL 751 c0 h512 -> 512"
    rows = compare.step_rows(timeline_of(short), timeline_of(long))
    resumed = next(row for row in rows if row["A step"] and row["A"].startswith("lookup") and row["A step"] > 4)
    assert resumed["B"].startswith("lookup")
    assert {row[""] for row in rows} >= {"only B"}


def test_accounts_beside_each_other() -> None:
    rows = {row["name"]: row for row in request.account_rows(timeline_of(HIT)["request"], timeline_of(MISS)["request"])}
    status = rows["status"]
    assert (status["value"], status["other"], status["differs"]) == ("finished", "preempted", True)
    assert rows["total"]["differs"] is False


def test_charts_of_two_requests_have_the_same_axes() -> None:
    stories = [timeline_of(text) for text in (HIT, f"{MISS}\nA 512\nS 512+900")]
    frame = request_charts.frame(*stories)
    for by_step in (False, True):
        style = request_charts.Style(frame=frame, by_step=by_step)
        for chart in (request_charts.timeline_chart, request_charts.account_chart):
            scales = [
                {
                    (axis, str(layer["encoding"][axis]["scale"]["domain"]))
                    for layer in chart(story, style).to_dict()["layer"]
                    for axis in ("x", "y")
                    if "scale" in layer["encoding"].get(axis, {})
                }
                for story in stories
            ]
            assert scales[0] == scales[1]
            assert {axis for axis, _ in scales[0]} == {"x", "y"}


def test_ranks_have_rows_of_their_own_where_there_are_several() -> None:
    rows = request.row_order(
        [{"row": "load, rank 1"}, {"row": "lookup"}, {"row": "load, rank 0"}, {"row": "llm_request"}]
    )
    assert rows == ["llm_request", "lookup", "load, rank 0", "load, rank 1"]
    one, two = (timeline_of(f"L 750 c0 h512 -> 512\nA 512\nload 512{more}") for more in ("", "\nload 512 rank 1"))
    assert "load, rank 1" in request_charts.frame(two).rows
    assert "load, rank 1" not in request_charts.frame(one).rows
