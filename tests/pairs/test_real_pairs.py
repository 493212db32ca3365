"""Real pairs of engines: what they answer when the router is sound, what it takes to make them answer wrong, and that each
wrong answer is named, at the default settings.

The connectors need packages that are not among kvtrail's dependencies, and that also run without a GPU:

    pip install --no-deps -r constraints-pd.txt
    pip install --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1    # and libibverbs1, libnl-route-3-200 from Debian
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from pair import Engine, alone
from routing import STORIES, Played, play

pytestmark = pytest.mark.long


def _missing(connector: str) -> str:
    """Why vLLM's connector of this name cannot run here; empty if it can."""
    if connector == "ExampleConnector":
        return ""
    if connector != "MooncakeConnector":
        install = "pip install --no-deps -r constraints-pd.txt"
        return "" if find_spec("nixl") else f"vLLM's {connector} needs nixl: {install}"
    try:
        importlib.import_module("mooncake.engine")
    except ImportError as error:
        install = "pip install --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1, and libibverbs1"
        return f"vLLM's MooncakeConnector needs Mooncake: {install} ({error})"
    return ""


def _stories(names: Iterable[str]) -> list[Any]:
    missing = {name: _missing(STORIES[name].connector["kv_connector"]) for name in names}
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=why or "it can run here"))
        for name, why in missing.items()
    ]


SOUND = [name for name in STORIES if name.startswith("healthy")]
EXCHANGED = {f"exchanged-{number}-{which}" for number in range(3) for which in range(2)}
LATE = {"late-0-0", "late-0-1", "late-1-0", "late-1-1"}
WRONG = {
    "late": LATE,
    "late-hybrid": LATE,
    "exchanged": EXCHANGED,
    "taken-over": {"exchanged-0", "exchanged-1", "again-exchanged-0", "again-exchanged-1"},
    "exchanged-mooncake": EXCHANGED,
    "exchanged-example": EXCHANGED,
    "stale-example": {"stale-0", "stale-1", "stale-2"},
    "read-again": {"again-read-0", "again-read-1", "again-read-2"},
    "same-id-push": {"same-0-0", "same-0-1", "same-1-0", "same-1-1"},
    "passed-on-multi": {"late-0", "late-1", "again-late-0", "again-late-1"},
}
"""The requests that get wrong tokens, by story."""
WITHOUT_TOKENS = {
    "killed": {"orphan-0", "orphan-1"},
    "aborted": {"aborted-0", "aborted-1", "aborted-2"},
    "never-pushed": {"late-0", "late-1"},
    "removed-example": {"removed-0"},
}
"""Those that get none."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Played]]:
    """What came of a story, which is played once."""
    with ExitStack() as stack:

        @cache
        def sound(hybrid: bool) -> Engine:
            folder = tmp_path_factory.mktemp("alone")
            return stack.enter_context(alone(folder, hybrid=hybrid))

        @cache
        def once(name: str) -> Played:
            folder = tmp_path_factory.mktemp(name)
            return play(name, folder, sound(STORIES[name].hybrid))

        yield once


@pytest.mark.parametrize("name", _stories(STORIES))
def test_those_get_wrong_tokens_that_read_what_is_not_theirs(name: str, played: Callable[[str], Played]) -> None:
    """Exactly those; all others get what one engine alone answers, or an error."""
    story = played(name)
    assert story.wrong() == WRONG.get(name, set())
    assert {each.job.id for each in story.decoded} - story.answered() == WITHOUT_TOKENS.get(name, set())


@pytest.mark.parametrize("name", _stories(WRONG))
def test_each_wrong_answer_is_named_and_no_right_one(name: str, played: Callable[[str], Played]) -> None:
    """By the bytes of the decoding engine's blocks: with the request of the prefilling engine that its KV came from."""
    story = played(name)
    drifts = [each for each in story.findings if each["rule"] == "byte-drift"]
    assert story.named(drifts) == WRONG[name]
    assert all(each["numbers"]["owner_engine"] != each["engine"] for each in drifts)
    given = {each.job.id: each.of for each in story.decoded}
    for each in drifts:
        if each["request"] in each["numbers"].get("takers", ()):
            (job,) = story.named([each])
            assert each["numbers"]["owner"].startswith(given[job]), each["explanation"]


@pytest.mark.parametrize("name", _stories(["removed-example"]))
def test_the_death_of_an_engine_is_explained(name: str, played: Callable[[str], Played]) -> None:
    (finding,) = played(name).findings
    assert (finding["rule"], finding["numbers"]["call"]) == ("failed-call", "start_load_kv")
    assert "No such file" in finding["explanation"]


@pytest.mark.parametrize("name", _stories(SOUND))
def test_nothing_is_found_in_a_sound_pair(name: str, played: Callable[[str], Played]) -> None:
    """Both sides of each request are recorded whole and are in order, and so are the ends of both engines."""
    story = played(name)
    assert story.findings == []
    assert {each["verdict"] for each in story.requests} == {"ok"}
    assert len(story.requests) == 2 * len(story.decoded)
    assert [(each["state"], each["lost"]) for each in story.engines] == [("drained", 0)] * 2
