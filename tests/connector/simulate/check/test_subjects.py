"""Every connector of vLLM's registry is either run by `kvtrail check` here, or it is known why not."""

from __future__ import annotations

import importlib.util

import pytest
import real_lmcache

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvtrail.connector import registration
from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.run import Unbuildable

registration.register()
REGISTERED = sorted(
    name
    for name in KVConnectorFactory._registry
    if not name.startswith(registration.TRACED) and name not in registration.OURS
)
CLEAN = ("DecodeBenchConnector", "MultiConnector", "OffloadingConnector", "SimpleCPUOffloadConnector")
ELSEWHERE = ("ExampleConnector", "LMCacheConnectorV1", "LMCacheMPConnector")
"""With findings, in test_known_findings.py."""
HAND_OVER = ("NixlPullConnector",)
"""Two engines run with it: one prefills for the other."""
IN_PAIRS = ("NixlConnector", "NixlPushConnector")
"""The same, in test_pairs_checked.py, and with findings in test_faults_of_vllm.py."""
NEVER_HIT = ("MooncakeConnector",)
"""They load for requests that another instance has prefilled, and a scenario has none."""
REFUSED = {
    "ExampleHiddenStatesConnector": "only works when using 'extract_hidden_states'",
    "FlexKVConnectorV1": "FlexKV is not installed",
    "HF3FSKVConnector": "Failed to connect to metadata server",
    "HiSparseConnector": "validation error for VllmConfig",
    "MoRIIOConnector": "No module named 'msgpack'",
}
WAITS_FOR_WORKERS = ("MooncakeStoreConnector",)
"""Its lookup waits forever for a worker's answer, and there is no fake for that."""
PACKAGES = {"FlexKVConnectorV1": "flexkv", "MoRIIOConnector": "msgpack"}


def test_none_is_forgotten() -> None:
    known = (*CLEAN, *ELSEWHERE, *HAND_OVER, *IN_PAIRS, *NEVER_HIT, *REFUSED, *WAITS_FOR_WORKERS)
    assert sorted(known) == REGISTERED
    findings = (real_lmcache.ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert [name for name in REGISTERED if f"| {name} " not in findings] == []


@pytest.mark.parametrize(("runs", "hits"), [(2, 3), pytest.param(len(PROFILES), 50, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CLEAN)
def test_it_is_run_and_its_lookups_hit(name: str, runs: int, hits: int) -> None:
    """vLLM 0.32's OffloadingConnector has one fault, of a load in the first step after a reset (`test_faults_of_vllm`)."""
    checked = check(name, steps=None, runs=runs, seed=300)
    known = {"rule: failed-call"} if name in ("OffloadingConnector", "MultiConnector") else set()
    assert [found.failure for found in checked.found if found.failure.id not in known] == []
    assert checked.hits > hits


@pytest.mark.parametrize("name", HAND_OVER)
def test_it_hands_over_and_its_lookups_hit(name: str) -> None:
    checked = check(name, profiles=["handoffs"], steps=None, runs=2)
    assert [found.failure for found in checked.found] == []
    assert checked.hits > 5


@pytest.mark.parametrize("name", NEVER_HIT)
def test_it_is_run_and_nothing_can_be_said(name: str) -> None:
    checked = check(name, steps=None, runs=1)
    assert (checked.hits, checked.found) == (0, [])
    assert checked.lookups > 0


@pytest.mark.parametrize("name", REFUSED)
def test_it_cannot_be_made_and_says_why(name: str) -> None:
    if importlib.util.find_spec(PACKAGES.get(name, "no-such-package")) is not None:
        pytest.skip(f"{PACKAGES[name]} is installed here")
    with pytest.raises(Unbuildable, match=REFUSED[name]):
        check(name, steps=None, runs=1)


@pytest.mark.parametrize("profile", [pytest.param("multi", marks=pytest.mark.long), "retry"])
@pytest.mark.parametrize(
    ("name", "fakes", "found"),
    [("NeverHeard", True, True), ("HeardByMetadata", True, False), ("HeardByMetadata", False, True)],
)
def test_what_only_its_own_workers_can_end_is_not_left_over_where_fakes_stand_in(
    name: str, fakes: bool, found: bool, profile: str
) -> None:
    checked = check(
        f"planted.metadata:{name}", profiles=[profile], runs=1, steps=None, shrink_tries=0, fake_workers=fakes
    )
    assert any("remembers ended requests" in each.failure.id for each in checked.found) is found
