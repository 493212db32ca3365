"""Single keys, one after the other and in bursts, and where they lead."""

from __future__ import annotations

import pytest
from history import history
from played_history import LATE, STALE_AT, STORY, played
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from kvtrail.tracer.reports.console import Console

RIGHT, LEFT, UP, HOME, END = "\x1b[C", "\x1b[D", "\x1b[A", "\x1b[H", "\x1b[F"


def after(typed: str) -> Console:
    """The console after somebody has typed this, before it was drawn, and has gone."""
    player = played(history(STORY + LATE))
    with create_pipe_input() as keys:
        keys.send_text(typed + "\x04")
        console = Console(player, source=keys, output=DummyOutput())
        console.run()
    return console


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("", 1),
        ("n", 2),
        (" " + RIGHT + "\r", 4),
        ("nnn" + RIGHT + "p", 4),
        ("nnp" + LEFT + UP, 1),
        (END, 20),
        (END + "n" + HOME, 1),
        ("f", STALE_AT),
        ("fF", STALE_AT),
        ("g7\r", 7),
        ("g7\rn", 8),
        ("g19\x7f\r", 1),
        ("g7\x1bn", 2),  # called off
        ("g\r", 1),
        ("g99\r", 1),
        ("gseven\r", 1),
        ("rb-cmpl\r", 3),
        ("rnobody\rn", 2),
        ("?n", 2),  # a key leaves the page, and counts
        ("?" + "\x1b" + "n", 2),
        ("e\x1bn", 2),
        ("zn", 2),
        ("n\x04n", 2),
        ("nqn", 2),
    ],
)
def test_keys(typed: str, number: int) -> None:
    assert after(typed).player.number == number


def test_only_one_request_and_all_again() -> None:
    alone = after("no" + END).player
    assert alone.following == [("engine", "cmpl-1-0-0123abcd")]
    assert alone.here().event.request == "cmpl-1-0-0123abcd"
    assert after("noo").player.following is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "20 events of 4 requests in 1 engine"),
        ("p", "This is the first step."),
        (END + "n", "This is the last step."),
        (END + "f", "No finding after this step."),
        ("F", "No finding before this step."),
        ("z", "Press ? for the keys."),
        ("rx\r", "there is no request 'x'"),
        ("g99\r", "there is no step 99; there are 20"),
        ("gseven\r", "'seven' is not a number"),
        ("no", "Only this request; o for all again."),
        ("pn", ""),
    ],
)
def test_what_a_key_could_not_do_is_said(typed: str, said: str) -> None:
    message = after(typed).message
    assert message.startswith(said)
    assert message == "" or said


@pytest.mark.parametrize("typed", ["\x03", "ng\x03", "nn\x03n"])
def test_ctrl_c_is_left_to_the_command(typed: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        after(typed)
