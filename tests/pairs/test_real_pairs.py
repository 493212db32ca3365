"""Real pairs of engines: what they answer when the router is sound, and what it takes to make them answer wrong.

The connector needs the package `nixl`, which is not among kvtrail's dependencies:
`pip install --no-deps -r constraints-pd.txt` (it also runs without a GPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec

import pytest
from pair import Engine, alone
from routing import STORIES, Played, play

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("nixl") is None,
        reason="vLLM's NixlConnector needs nixl: pip install --no-deps -r constraints-pd.txt",
    ),
]
SOUND = [name for name in STORIES if name.startswith("healthy")]
LATE = {"late-0-0", "late-0-1", "late-1-0", "late-1-1"}
WRONG = {
    "late": LATE,
    "late-hybrid": LATE,
    "exchanged": {f"exchanged-{number}-{which}" for number in range(3) for which in range(2)},
    "read-again": {"again-read-0", "again-read-1", "again-read-2"},
    "same-id-push": {"same-0-0", "same-0-1", "same-1-0", "same-1-1"},
    "passed-on-multi": {"late-0", "late-1", "again-late-0", "again-late-1"},
}
"""The requests that get wrong tokens, by story."""
WITHOUT_TOKENS = {
    "killed": {"orphan-0", "orphan-1"},
    "aborted": {"aborted-0", "aborted-1", "aborted-2"},
    "never-pushed": {"late-0", "late-1"},
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
            return play(name, folder, folder / "trace.jsonl", sound(STORIES[name].hybrid))

        yield once


@pytest.mark.parametrize("name", STORIES)
def test_those_get_wrong_tokens_that_read_what_is_not_theirs(name: str, played: Callable[[str], Played]) -> None:
    """Exactly those; all others get what one engine alone answers, or an error."""
    story = played(name)
    assert story.wrong() == WRONG.get(name, set())
    assert {each.job.id for each in story.decoded} - story.answered() == WITHOUT_TOKENS.get(name, set())


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_a_sound_pair(name: str, played: Callable[[str], Played]) -> None:
    """Both sides of each request are recorded whole and are in order, and so are the ends of both engines."""
    story = played(name)
    assert story.findings == []
    assert {each["verdict"] for each in story.requests} == {"ok"}
    assert len(story.requests) == 2 * len(story.decoded)
    assert [(each["state"], each["lost"]) for each in story.engines] == [("drained", 0)] * 2
