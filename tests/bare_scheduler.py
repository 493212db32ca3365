"""Random workloads on vLLM's bare scheduler."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate.bare_scheduler import BareScheduler


def scheduler(folder: Path, name: str, extra: dict[str, Any] | None = None, **options: Any) -> BareScheduler:
    connector = {"kv_connector": name, "kv_connector_extra_config": extra or {}, "kv_load_failure_policy": "recompute"}
    if ":" in name:
        connector["kv_connector_module_path"] = "kvtrail.connector"
    return BareScheduler(folder / "model", connector, **options)


def storm(bare: BareScheduler, *, seed: int, requests: int = 300, reset_running: bool = True) -> None:
    """Requests that share prefixes, come at random, are aborted at random, while caches are reset at random; with requests
    that run, if no load can be under way."""
    rng = random.Random(seed)
    heads = [[rng.randrange(3, 512) for _ in range(32 * rng.randrange(4, 20))] for _ in range(4)]
    heads.append([rng.randrange(3, 512) for _ in range(512)])  # alone a full hit, the second time
    live: list[str] = []
    added = 0
    while added < requests or bare.scheduler.has_unfinished_requests():
        if added < requests and rng.random() < 0.2:
            head = rng.choice(heads)
            tail = (
                []
                if len(head) == 512 and rng.random() < 0.7
                else [rng.randrange(3, 512) for _ in range(rng.randrange(200))]
            )
            live.append(f"storm-{added}")
            bare.add(live[-1], head + tail, rng.randrange(1, 80), priority=rng.randrange(3))
            added += 1
        if live and rng.random() < 0.01:
            bare.abort(live.pop(rng.randrange(len(live))))
        if rng.random() < 0.01:
            bare.scheduler.reset_prefix_cache(
                reset_running_requests=rng.random() < 0.5 and reset_running, reset_connector=rng.random() < 0.3
            )
        bare.step()
