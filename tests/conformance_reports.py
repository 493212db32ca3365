"""Reports of the conformance suite, as its commands write them, for what people read of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
TEST = "def test_stale_lookup():\n    assert 1 < 2  # <b>&amp;</b>\n"


def requirement(id_: str, result: str, **more: Any) -> dict[str, Any]:
    level = id_.partition(".")[0]
    return {
        "id": id_,
        "level": level,
        "feature": None,
        "sentence": f"What {id_} says holds.",
        "source": "vLLM 0.32, `KVConnectorBase_V1` (https://example.org/base)",
        "judged_by": ["stale-lookup"],
        "result": result,
        "reached": 1234 if result != "not exercised" else 0,
        "why": "it was never reached: no run in which `a lookup hit`" if result == "not exercised" else None,
        "failures": ["rule: stale-lookup"] if result == "failed" else [],
        **more,
    }


def report(**more: Any) -> dict[str, Any]:
    """One of a connector that fails; `more` replaces keys."""
    return {
        "schema_version": 1,
        "suite": {"name": "kvtrail conformance", "version": "1", "kvtrail": "0.30.0"},
        "at": "2026-11-26T21:40:00+00:00",
        "vllm": "0.32.0",
        "python": "3.11.7",
        "connector": {
            "name": "my_connector:MyConnector", "module": "my_connector", "class": "MyConnector",
            "package": None, "version": None,
        },
        "settings": {"level": "core", "config": None, "steps": 10_000, "profiles": ["retry", "abort"]},
        "seed": 0,
        "steps": 10_020,
        "lookups": 3210,
        "hits": 654,
        "seconds": 98.7,
        "workers": {"own": True, "why_fake": None, "loads_read": 91, "blocks_compared": 230_000},
        "unprobed": "it has no probe",
        "features": {"claimed": ["asynchronous loads"], "detected": ["asynchronous loads"]},
        "verdict": "failed",
        "inconclusive": [],
        "requirements": [
            requirement("core.lookup.beyond-computed", "failed"),
            requirement("core.lookup.leaves-a-token", "passed"),
            requirement("core.lookup.after-eviction", "not exercised"),
            requirement("core.load.bytes", "passed"),
            requirement("extended.async-loads.once", "passed", feature="asynchronous loads"),
            requirement("extended.groups.hit", "not exercised", feature="several KV cache groups", why="it was refused"),
        ],
        "failures": [failure()],
        "not_driven": {"groups": "ValueError: it does not support HMA", "states": "ValueError: it does not support HMA"},
        **more,
    }  # fmt: skip


def failure(**more: Any) -> dict[str, Any]:
    return {
        "id": "rule: stale-lookup",
        "requirements": ["core.lookup.beyond-computed"],
        "text": "At L2 vLLM already had 288 of 840 tokens computed, so at most max(0, 256 - 288) = 0 can be new.",
        "details": "",
        "flaky": False,
        "times": 3,
        "profile": "retry",
        "seed": 7,
        "config": {"capacity": 12},
        "again": "kvtrail check 'my_connector:MyConnector' --profile retry --seed 7 --runs 1 --config '{\"capacity\": 12}'",
        "scenario": {
            "arrivals": [
                {"id": "r-0", "prompt": [["head-0", 256], ["1", 40]], "max_tokens": 3},
                {"id": "r-1", "prompt": [["head-0", 256]], "max_tokens": 5, "at_step": 12},
            ],
            "num_blocks": 64,
        },
        "trace": "stale-lookup.jsonl",
        "test": "test_stale_lookup.py",
        "found_after": 1219,
        **more,
    }


def folder_with_files(folder: Path, trace: str = "stale-lookup.jsonl") -> Path:
    """A folder with the files that `report` names."""
    shutil.copy(GOLDEN / trace, folder / "stale-lookup.jsonl")
    (folder / "test_stale_lookup.py").write_text(TEST, encoding="utf-8")
    return folder
