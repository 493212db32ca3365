"""What could not be judged, in words that a person can act on."""

from __future__ import annotations

from kvtrail.dashboard.content.request import account


def test_a_request_says_why_its_verdict_is_unknown() -> None:
    assert account.why_unknown({"verdict": "ok", "unknown": None}) == ""
    assert account.why_unknown({"verdict": "unknown"}) == "", "an older tracer stored it"
    said = account.why_unknown({"verdict": "unknown", "unknown": "lost"})
    assert said.startswith("The verdict is unknown: events were lost. The runbooks KvtrailEventsDropped")


def test_a_request_that_was_lost_is_not_said_to_end_yet() -> None:
    lost = {"verdict": "unknown", "unknown": "open", "outcome": "lost"}
    assert account.why_unknown(lost) == (
        "It was open when its engine ended: its caller got no end. So its verdict stays unknown."
    )
    assert "It resolves when the request ends" in account.why_unknown({**lost, "outcome": "running"})


def test_a_reason_of_a_newer_tracer_is_shown_as_it_is() -> None:
    said = account.why_unknown({"verdict": "unknown", "unknown": "of_the_future"})
    assert said == "The verdict is unknown: of the future."


def test_a_request_that_was_open_when_its_engine_ended_leads_to_that_time() -> None:
    lost = {"outcome": "lost", "last_ns": 10**18}
    around = account.around_end(lost)
    assert around is not None
    assert around.since_ns < 10**18 < around.until_ns
    assert account.around_end({**lost, "outcome": "finished"}) is None
