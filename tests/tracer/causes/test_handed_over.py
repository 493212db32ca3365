"""Why a request computes what another engine has handed over to it, or has computed and not handed over."""

from __future__ import annotations

import pytest
from history import history
from msgspec import structs

from kvtrail.tracer.causes.causes import Causes
from kvtrail.tracer.causes.fleet import Fleet
from kvtrail.tracer.events.events import Handoff, Lookup
from kvtrail.tracer.model.causes import PEER, NotRecorded, Part

START = "b: start 140 of a b c d\n"
TAKES = START + "b: takes h1 140/140 of x from p\n"
LOADS = TAKES + "b: L 140 c0 -> 140 async\nb: A 140 [1-5]\n"


def parts(text: str, connector: str = "NixlConnector") -> list[Part]:
    """Those of the last admission of a history."""
    causes = Causes()
    for event in history(f"cache\n{text}", connector=connector):
        causes.enter(event)
    last = causes.breakdowns[-1]
    assert last.is_whole
    return last.parts


def said(text: str) -> str:
    """The cause of each part, with its tier, tokens, the other engine, and why it was not given."""
    return ", ".join(
        " ".join(filter(None, (each.cause, each.tier, str(each.tokens), each.detail.engine, each.detail.refusal)))
        for each in parts(text)
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param(LOADS + "b: R\nb: S 139+1", "loaded p2p 139 p, last-token p2p 1 p", id="all of it"),
        pytest.param(
            TAKES + "b: L 140 c0 -> 139 async\nb: A 139\nb: R\nb: S 139+1",
            "loaded p2p 139 p, unaligned 1",
            id="but for the last token",
        ),
        pytest.param(
            LOADS + "b: R failed\nb: L 140 c0 -> 0\nb: A 0\nb: S 0+140", "failed-load p2p 140 p", id="its load failed"
        ),
        pytest.param(
            LOADS + "b: error [3]\nb: R failed\nb: S 64+76",
            "loaded p2p 64 p, failed-load p2p 75 p, last-token p2p 1 p",
            id="a part of its load failed",
        ),
        pytest.param(
            LOADS + "b: end error\nb: error [1-5]\nb: R failed",
            "failed-load p2p 139 p, last-token p2p 1 p",
            id="its load failed after the request's end",
        ),
        pytest.param(
            LOADS + "b: end aborted\nb: R",
            "loaded p2p 139 p, last-token p2p 1 p",
            id="its load ended well after the request's end",
        ),
        pytest.param(TAKES + "b: L 140 c0 -> 0\nb: A 0", "refused p2p 140 p declined", id="not offered"),
        pytest.param(TAKES + "b: L 140 c0 -> 0 healed 140\nb: A 0", "refused p2p 140 p guarded", id="the guard"),
        pytest.param(TAKES + "b: L 140 c0 -> 140\nb: A 0", "refused p2p 140 p untaken", id="not taken"),
        pytest.param(
            TAKES + "b: L 140 c0 -> 64 async\nb: A 64\nb: R\nb: S 64+76",
            "loaded p2p 64 p, refused p2p 76 p capped",
            id="less was offered",
        ),
        pytest.param(
            TAKES + "b: L 140 c0 -> later\nb: L 140 c0 -> 0\nb: A 0", "refused p2p 140 p given-up", id="later, and none"
        ),
        pytest.param(
            START + "b: takes h1 70/140 of x from p\nb: L 140 c0 -> 0\nb: A 0",
            "refused p2p 64 p declined, new 64, unaligned 12",
            id="a part was handed over",
        ),
        pytest.param(
            START + "b: takes h1 -/140 of x from p\nb: L 140 c0 -> 0\nb: A 0",
            "new 128, unaligned 12",
            id="how much is not said",
        ),
        pytest.param(
            START + "b: takes h1 -/140 of x from p\nb: L 140 c0 -> 140 async\nb: A 140\nb: R failed\n"
            "b: L 140 c0 -> 0\nb: A 0",
            "failed-load p2p 140 p",
            id="how much is not said, and its load failed",
        ),
        pytest.param(
            "cache + a b\n" + TAKES + "b: L 140 c64 -> 0\nb: A 0",
            "held gpu 64, refused p2p 76 p declined",
            id="behind what vLLM holds",
        ),
        pytest.param(
            "cache + a b\ncache - b\n" + TAKES + "b: L 140 c32 -> 0\nb: A 0",
            "held gpu 32, refused p2p 108 p declined",
            id="what vLLM has lost was handed over",
        ),
        pytest.param(START + "b: L 140 c0 -> 0\nb: A 0", "new 128, unaligned 12", id="no hand-off"),
    ],
)
def test_outcomes_of_hand_offs(text: str, what: str) -> None:
    assert said(text) == what


def test_a_hand_off_is_read_once() -> None:
    """A request that was preempted has lost what it had loaded, and no engine was to hand it over once more: it is not known
    that a connector with an unobserved store did not have it, either."""
    text = LOADS + "b: R\ncache + a b c d\nb: S 139+1\ncache - b c d\nb: P\nb: L 141 c32 -> 0\nb: A 0"
    assert said(text) == "held gpu 32, unknown 96, unaligned 13"


def test_what_is_handed_over_without_a_name_is_not_handed_over() -> None:
    events = history("cache\n" + TAKES + "b: L 140 c0 -> 0\nb: A 0", connector="NixlConnector")
    causes = Causes()
    for event in events:
        causes.enter(structs.replace(event, handoff_keys=()) if hasattr(event, "handoff_keys") else event)
    assert [each.cause.value for each in causes.breakdowns[-1].parts] == ["new", "unaligned"]


def test_a_connector_that_names_no_tier_loads_what_was_handed_over_from_another_engine() -> None:
    (loaded, _) = parts(LOADS, connector="MoRIIOConnector")
    assert (loaded.tier, loaded.tokens) == (PEER, 139)


OTHER = "cache\ncache + a b c d\na: start 140 of a b c d\na: L 140 c128 -> 0\na: A 0\n"
WAS_HANDED = "cache\nz: start 10\nz: takes h0 10/10 of z from p\nz: L 10 c0 -> 0\nz: A 0\n"


@pytest.mark.parametrize(
    ("before", "taken", "is_lost", "said"),
    [
        (WAS_HANDED, "", False, "not-handed"),
        (WAS_HANDED, "b: takes h1 -/140 of x from p\n", False, ""),
        (WAS_HANDED, "b: takes h1 140/140 of x from p\n", True, ""),
        ("cache\n", "", False, ""),
    ],
    ids=["came without", "how much is not said", "its parameters were lost", "nothing is ever handed over"],
)
def test_what_another_engine_computed_was_not_handed_over(before: str, taken: str, is_lost: bool, said: str) -> None:
    fleet = Fleet()
    engines = Causes(fleet), Causes(fleet)
    for name, causes, text in zip(
        ("p", "d"), engines, (OTHER, f"{before}{START}{taken}b: L 140 c0 -> 0\nb: A 0"), strict=True
    ):
        for event in history(text, connector="NixlConnector"):
            if is_lost and isinstance(event, Handoff) and event.request != "z-cmpl-1-0-0123abcd":
                causes.mark_gap(NotRecorded.LOST, before=event)
                continue
            if isinstance(event, Lookup):
                event = structs.replace(event, cache_identity="0123456789abcdef")
            causes.enter(structs.replace(event, engine=name))
    found = [part for part in engines[1].breakdowns[-1].parts if part.cause == "elsewhere"]
    assert {part.detail.refusal for part in found} == (set() if is_lost else {said})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("decodes", "cause"),
    [
        pytest.param(LOADS + "b: R\ncache + a b c d\nb: S 139+1", "new", id="it has loaded what was handed over"),
        pytest.param(
            START + "b: L 140 c0 -> 0\nb: A 0\ncache + a b c d\nb: S 0+140", "elsewhere", id="it has computed it"
        ),
        pytest.param(
            "cache + a b c d\ncache - a b c d\n" + LOADS + "b: R\ncache + a b c d\nb: S 139+1", "elsewhere",
            id="it had computed it before",
        ),
    ],
)  # fmt: skip
def test_who_has_loaded_what_was_handed_over_has_not_computed_it(decodes: str, cause: str, first: int) -> None:
    """The engine that gives computes it first, and may be heard later."""
    fleet = Fleet()
    engines = Causes(fleet), Causes(fleet)
    prefills = "cache\na: start 140 of a b c d\na: L 140 c0 -> 0\na: A 0\ncache + a b c d\na: S 0+140"
    stories = [("p", engines[0], prefills), ("d", engines[1], f"cache\n{decodes}")]
    for name, causes, text in [*stories[first:], *stories[:first]]:
        for event in history(text, connector="NixlConnector"):
            if isinstance(event, Lookup):
                event = structs.replace(event, cache_identity="0123456789abcdef")
            causes.enter(structs.replace(event, engine=name))
    found = ", ".join(dict.fromkeys(part.cause.value for part in engines[0].breakdowns[-1].parts if part.end <= 128))
    assert found == (cause if first else "new")
