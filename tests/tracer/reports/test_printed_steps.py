"""What people see of a step: a line, or all of it."""

from __future__ import annotations

from click import unstyle
from history import history
from played_history import LATE, SPAN, STALE_AT, STORY, played

from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.player import Player
from kvtrail.tracer.reports import steps


def lines(text: str) -> list[str]:
    return [unstyle(line) for line in "\n".join(steps.lines(played(history(text)), columns=None)).split("\n")]


def test_every_step_is_a_line_with_what_it_says_and_what_it_changed() -> None:
    assert lines("L 749 c0 h256 -> 256\nA 256 [1-24]\nevict a\nS 256+80\nP")[:9] == [
        "6 events of 1 request in 1 engine, 2025-12-03 01:24:36.000 to 01:24:36.005 UTC.",
        "1 request: 0 with drift, 0 ok, 1 unknown.",
        "",
        "2025-12-03 (UTC)",
        "1  01:24:36.000  cmpl-1-0-0123abcd  arrival: arrived with 749 tokens  [total 749; prompt 749]",
        "2  01:24:36.001  cmpl-1-0-0123abcd  lookup: 0 of 749 computed, 256 matched; answered 256  "
        "[computed 0; matched 256; returned 256; longest match 256; lookups 1]",
        "3  01:24:36.002  cmpl-1-0-0123abcd  allocation: blocks for 256 external tokens; blocks 1-24  "
        "[status admitted; allocated 256; loads 1]",
        "4  01:24:36.003  –                  eviction: chunk key a",  # noqa: RUF001
        "5  01:24:36.004  cmpl-1-0-0123abcd  schedule: runs 80 tokens after 256 computed  "
        "[status admitted -> running; computed 0 -> 256; scheduled 80; begun 256]",
    ]


SUMS = "L 749 c0 h256 -> 256 async\nA 256\nR\nS 256+493\nP\nL 749 c0 h256 -> 256\nA 256\nS 256+493\nend"


def test_the_sums_of_the_account_are_there_in_the_pages_words() -> None:
    output = "\n".join(lines(SUMS))
    assert "[status loading; allocated 256; loads 1]" in output
    assert "waited for KV 1 ms in 1 load]" in output
    assert "; loads 1 -> 2]" in output
    assert "; recomputed 492]" in output


def test_looks_at_blocks_are_steps_and_sums_of_the_account() -> None:
    output = lines("check loaded 8\ncheck held 12 wrong rot 5@96")
    assert output[5].endswith("(worker 0): 8 loaded blocks checked: all hold what was computed  [blocks checked 8]")
    assert output[6].endswith("1 changed though nothing wrote to it  [blocks checked 8 -> 20; wrong blocks 1]")


def test_findings_stand_where_they_are_made() -> None:
    output = lines(STORY + LATE)
    at = next(n for n, line in enumerate(output) if line.startswith(f"{STALE_AT:>2}  "))
    assert output[at + 1].startswith("    stale-lookup [could: crash] A cached lookup answer")
    assert "at most max(0, 256 - 336) = 0 can be new" in output[at + 3]
    end = output.index("    At the end of the history, because something never came:")
    assert output[end + 1].startswith("    stuck-load [could: hang]")


def test_a_gap_is_a_line_of_its_own() -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+80\nend")
    output = "\n".join(map(unstyle, steps.lines(played(events[:1] + events[3:]), columns=None)))
    assert "2 events missing, by their numbers: what was not recorded cannot be judged." in output
    assert "\n   ... 2 events of cmpl-1-0-0123abcd missing here\n2  01:24:36.003" in output


def test_what_was_not_read_comes_first() -> None:
    history_ = History(
        moments=tuple((event, SPAN) for event in history("L 749 c0 h0 -> 0")),
        foreign=(SPAN, SPAN),
        repeated=3,
        unknown={"kv.from.the.future": 4},
        unreadable=(("t.jsonl", 7, "no JSON"), ("t.jsonl", 9, "no JSON")),
    )
    assert [unstyle(line) for line in steps.opening(Player(history_), None)][1:5] == [
        "Not read: 2 lines or spans; the first: t.jsonl:7: no JSON",
        "Unknown to this kvtrail, left out: kv.from.the.future (4).",
        "2 spans of other services left out.",
        "3 repeated spans counted once.",
    ]


def test_engines_and_connectors_are_named_where_there_are_several() -> None:
    one, other = (
        history("L 64 c0 h0 -> 0\nload 0", connector="A"),
        history("L 64 c0 h0 -> 0", engine="two", connector="B"),
    )
    for event in other:
        event.recorder, event.span_id = "other", f"bb{event.span_id[2:]}"
    alone = "\n".join(map(unstyle, steps.lines(played(one), columns=None)))
    assert "lookup: " in alone
    assert "load (worker 0): " in alone
    both = "\n".join(map(unstyle, steps.lines(played([*one, *other]), columns=None)))
    assert "two  cmpl-1-0-0123abcd  lookup (B): " in both
    assert "load (worker 0, A): " in both


def test_one_step_has_its_requests_account_and_its_findings() -> None:
    player = played(history(STORY))
    output = [unstyle(line) for line in steps.lines(player, only=player.step(STALE_AT), columns=None)]
    assert [line.split("  ")[0] for line in output[1:] if line[:1].strip().isdigit()] == [str(STALE_AT)]
    assert "    computed 336 (was –)" in output  # noqa: RUF001
    assert any(line.startswith("    stale-lookup [could: crash]") for line in output)


def test_a_trace_file_cannot_steer_the_terminal() -> None:
    events = history(
        "L 749 c0 h256 -> 256 keys a\x1b[2J\nA 256 !\x07\x1b]0;x", request="r\x1b[2J-0123abcd", engine="e\x1b"
    )
    player = played(events)
    output = list(map(unstyle, steps.lines(player, columns=None)))
    assert not any("\x1b" in line or "\x07" in line for line in output)
    assert any(r"raised \x07\x1b]0;x" in line for line in output)
