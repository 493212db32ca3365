"""Two requests side by side, on histories judged by the tracer."""

from __future__ import annotations

from test_request import timeline_of

from kvtrail.dashboard.content import charts, compare, request

HIT = "L 750 c0 h512 -> 512\nA 512\nS 512+238\nend"
MISS = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nP\nL 750 c0 h512 -> 512"


def test_the_same_story_has_no_difference() -> None:
    other = timeline_of(HIT.replace("A 512", "A 512 [1-16]"))  # other blocks are no difference
    assert compare.first_difference(timeline_of(HIT), other) is None
    assert compare.first_other_call(timeline_of(HIT), other) is None
    assert all(row[""] == "" for row in compare.step_rows(timeline_of(HIT), other))


def test_the_first_difference_in_numbers_and_the_first_in_calls() -> None:
    a, b = timeline_of(HIT), timeline_of(MISS)
    difference = compare.first_difference(a, b)
    assert difference is not None
    assert difference.steps == (3, 3)  # vLLM's own span is the first step, and is not compared
    assert difference.sentence == (
        "A at step 3, lookup: 0 of 750 computed, 512 matched; answered 512;"
        " B at step 3, lookup: 0 of 750 computed, 0 matched; answered 0"
    )
    other = compare.first_other_call(a, b)
    assert other is not None
    assert other.steps == (6, 6)
    assert "request: stopped" in other.sentence
    assert [row[""] for row in compare.step_rows(a, b)] == ["", "first", "differs", "differs", "differs", "differs"]


def test_a_request_that_has_ended_before() -> None:
    shorter = timeline_of("L 750 c0 h512 -> 512\nA 512\nS 512+238")
    difference = compare.first_difference(shorter, timeline_of(HIT))
    assert difference is not None
    assert difference.steps == (None, 6)
    assert difference.sentence.startswith("A has ended; B at step 6, request")
    assert compare.step_rows(shorter, timeline_of(HIT))[-1]["A"] is None


def test_accounts_beside_each_other() -> None:
    rows = {row["name"]: row for row in request.account_rows(timeline_of(HIT)["request"], timeline_of(MISS)["request"])}
    assert (rows["status"]["value"], rows["status"]["other"], rows["status"]["differs"]) == (
        "finished",
        "preempted",
        True,
    )
    assert rows["total"]["differs"] is False


def test_charts_of_two_requests_have_one_scale() -> None:
    domains = [
        layer["encoding"]["y"]["scale"]["domain"]
        for story in (HIT, MISS)
        for layer in charts.account_chart(timeline_of(story), by_step=True, top=1000).to_dict()["layer"]
        if "scale" in layer["encoding"].get("y", {})
    ]
    assert set(map(tuple, domains)) == {(0, 1080.0)}


def test_ranks_have_rows_of_their_own_where_there_are_several() -> None:
    rows = request.row_order(
        [{"row": "load, rank 1"}, {"row": "lookup"}, {"row": "load, rank 0"}, {"row": "llm_request"}]
    )
    assert rows == ["llm_request", "lookup", "load, rank 0", "load, rank 1"]
    drawn = charts.timeline_chart(timeline_of("L 750 c0 h512 -> 512\nA 512\nload 512\nload 512 rank 1")).to_json()
    assert "load, rank 1" in drawn
    assert "load, rank" not in charts.timeline_chart(timeline_of("L 750 c0 h512 -> 512\nA 512\nload 512")).to_json()
