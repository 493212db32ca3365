"""`kvtrail check` finds bugs of the kinds that authors of connectors write, and accuses the one without them of nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted.bugs import BUGS

from kvtrail.connector.simulate.check.session import check

MISSED = {"MarkMovedByFailedStore"}
"""It only wastes work: nothing that a request reads or a lookup claims is wrong, and it is over with the request."""
OF_WORKERS = {"BlocksKeptForEver", "ReportedTwice"}
"""What the connector's workers report, or never do: fakes report in their place."""
OF_PLANS = {"PlanSkipsFirstChunk"}
"""Without bytes only a probe shows it."""

STEPS = 25_000
"""A turn of the profiles more than `kvtrail check` takes by default: a store of failed loads is found in the third
turn of `load-failure`, after more than 20,000."""


@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED])
def test_a_planted_bug_is_found_without_a_probe(bug: str) -> None:
    checked = check(f"planted.bugs:{bug}", steps=STEPS, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED | OF_WORKERS | OF_PLANS])
def test_fake_workers_alone_find_it_too(bug: str) -> None:
    checked = check(f"planted.bugs:{bug}", steps=STEPS, shrink_tries=0, stop_at_first=True, fake_workers=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


def test_a_plan_that_leaves_tokens_out_is_found_with_a_probe() -> None:
    checked = check(
        "planted.probed:PlanSkipsFirstChunk", steps=STEPS, shrink_tries=0, stop_at_first=True, fake_workers=True
    )
    assert "plans: a load leaves out tokens that were promised" in [found.failure.id for found in checked.found]


@pytest.mark.parametrize("steps", [4_000, pytest.param(16_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("fake_workers", [False, True])
def test_the_connector_without_a_bug_is_clean(fake_workers: bool, steps: int) -> None:
    checked = check("planted.probed:HostCache", steps=steps, shrink_tries=0, fake_workers=fake_workers)
    assert [found.failure for found in checked.found] == []
    if fake_workers:
        return
    assert checked.fake_workers is None, "its own workers run"
    assert checked.loads_read > 20
