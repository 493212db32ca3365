"""Single keys, one after the other and in bursts, and where they lead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from history import history
from played_history import LATE, STALE_AT, STORY, played

from kvtrail.tracer.replay.player import Player
from kvtrail.tracer.reports.console import Console

RIGHT, LEFT, HOME, END = "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F"


def after(*typed: str) -> Player:
    """The player after somebody has left the first page, typed this, and has gone."""
    player = played(history(STORY + LATE))
    burst: Iterator[str] = iter([" ", *typed])
    Console(player, read=lambda: next(burst, "")).run()
    return player


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ([], 1),
        (["n"], 2),
        ([" ", RIGHT, "\r"], 4),
        (["nnn" + RIGHT + "p"], 4),  # typed faster than drawn
        (["n", "n", "p"], 2),
        (["n", LEFT, LEFT], 1),
        ([END], 20),
        ([END, "n", HOME], 1),
        (["f"], STALE_AT),
        (["f", "F"], STALE_AT),
        (["g", "7", "\r"], 7),
        (["g7\rn"], 8),
        (["g", "19", "\x7f", "\r"], 1),
        (["g", "7", "\x1b", "n"], 2),  # called off
        (["g", "\r"], 1),
        (["g", "99\r"], 1),
        (["g", "seven\r"], 1),
        (["r", "b-cmpl\r"], 3),
        (["r", "nobody\r", "n"], 2),
        (["?", "q"], 1),
        (["e", "x", "n"], 2),
        (["z", "n"], 2),
        (["n", "\x04", "n"], 2),
        (["n", "q", "n"], 2),
    ],
)
def test_keys(typed: list[str], number: int) -> None:
    assert after(*typed).number == number


def test_only_one_request_and_all_again() -> None:
    alone = after("n", "o", END)
    assert alone.following == [("engine", "cmpl-1-0-0123abcd")]
    assert alone.here().event.request == "cmpl-1-0-0123abcd"
    assert after("n", "o", "o").following is None


def test_what_cannot_be_done_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    after("p", END, "n", "f", "z", HOME, "F", "r", "x\r", "g", "99\r")
    output = capsys.readouterr().out
    for sentence in (
        "This is the first step.", "This is the last step.", "No finding after this step.", "No finding before this step.",
        "Press ? for the keys.", "there is no request 'x'", "there is no step 99; there are 20",
    ):  # fmt: skip
        assert sentence in output


def test_the_first_page_tells_what_was_read_and_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    after()
    first = capsys.readouterr().out.partition("Press a key.")[0]
    assert "20 events of 4 requests in 1 engine" in first
    assert "next finding, previous finding" in first


@pytest.mark.parametrize("typed", [["\x03"], ["n", "g", "\x03"], ["nn\x03n"]])
def test_ctrl_c_is_left_to_the_command(typed: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        after(*typed)
