"""What could not be judged, in words that a person can act on."""

from __future__ import annotations

from kvtrail.dashboard.content import unknown

OVERVIEW = {"judgements": 2000, "unknown": {"probe": 30, "lost": 70}}


def test_a_request_says_why_its_verdict_is_unknown() -> None:
    assert unknown.of_request({"verdict": "ok", "unknown": None}) == ""
    assert unknown.of_request({"verdict": "unknown"}) == "", "an older tracer stored it"
    said = unknown.of_request({"verdict": "unknown", "unknown": "lost"})
    assert said.startswith("The verdict is unknown: events were lost. The runbooks KvtrailEventsDropped")


def test_a_request_that_was_lost_is_not_said_to_end_yet() -> None:
    lost = {"verdict": "unknown", "unknown": "open", "outcome": "lost"}
    assert unknown.of_request(lost) == (
        "It was open when its engine ended: its caller got no end. So its verdict stays unknown."
    )
    assert "It resolves when the request ends" in unknown.of_request({**lost, "outcome": "running"})


def test_the_share_and_the_reasons_of_what_could_not_be_judged() -> None:
    assert unknown.share({"judgements": 10, "unknown": {}}) == ""
    assert unknown.share(OVERVIEW) == "100 of 2,000 judgements (5.0 %) could not be made"
    all_of_them = unknown.share({"judgements": 2000, "unknown": {"lost": 1999}})
    assert all_of_them == "1,999 of 2,000 judgements (100 %) could not be made", "not 1e+02 %"
    rows = unknown.rows(OVERVIEW)
    assert [(row["Because"], row["Judgements"]) for row in rows] == [
        ("events were lost", 70), ("the connector has no probe that shows it", 30),
    ]  # fmt: skip
    assert all(row["What to do"] for row in rows)


def test_a_reason_of_a_newer_tracer_is_shown_as_it_is() -> None:
    assert unknown.reason("of_the_future") == ("of the future", "")
