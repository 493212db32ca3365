"""A store that copies in threads of its own, with what overlaps there: loads of one prefix, stores at a reset, tasks that end
in any order, and layers that are loaded one by one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.simulate.check.session import Checked, check

SMALL = {"capacity": 12, "load_async": True, "background": True, "protected": 0.0}


def checked(name: str, *profiles: str, runs: int, config: dict[str, Any] | None = None) -> Checked:
    return check(
        f"planted.{name}",
        config=config,
        profiles=profiles,
        steps=None,
        runs=runs,
        shrink_tries=0,
        stop_at_first=True,
    )


@pytest.mark.parametrize(("runs", "hits"), [(2, 20), pytest.param(4, 40, marks=pytest.mark.long)])
@pytest.mark.parametrize("profile", ["load-failure", "shared-loads", "no-prefix-caching", "failed-requests"])
def test_the_correct_store_is_clean(profile: str, runs: int, hits: int) -> None:
    """Also where layers are loaded one by one, and a load fails."""
    of = checked("thread_store:ThreadStore", profile, runs=runs)
    assert [found.failure for found in of.found] == []
    assert of.fake_workers is None
    assert of.hits > hits


@pytest.mark.parametrize(
    ("bug", "profile", "config"),
    [
        ("FenceOfResetLost", "conversation", SMALL | {"capacity": 400}),
        ("EndNotedByKey", "no-prefix-caching", SMALL | {"capacity": 40}),
        ("PinIsAFlag", "shared-loads", SMALL),
        ("LatestJobOnly", "no-prefix-caching", SMALL | {"capacity": 400, "load_async": False}),
    ],
)
def test_what_overlaps_wrongly_is_found(bug: str, profile: str, config: dict[str, Any]) -> None:
    of = checked(f"thread_bugs:{bug}", profile, runs=4, config=config)
    assert {"bytes", "hits"} & {found.failure.kind for found in of.found}, f"not in {of.steps.total()} steps"


def test_a_store_that_protects_what_was_found_again_has_not_lost_room() -> None:
    """Its protected entries make way for what is found again itself."""
    of = checked("thread_store:ThreadStore", "room", runs=2, config=SMALL | {"capacity": 40, "protected": 0.75})
    assert any(each.capacity_compared for each in of.runs)
    assert [found.failure for found in of.found] == []


def test_a_worker_that_dies_in_the_rehearsal_does_not_pass_on_fakes() -> None:
    of = checked("thread_bugs:WorkerDies", "retry", runs=1)
    assert of.fake_workers == "they died in a rehearsal (RuntimeError: no stream)"
    assert any("they died in a rehearsal" in reason for reason in of.inconclusive)
