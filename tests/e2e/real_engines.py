"""Real traffic for the pages: vLLM's real scheduler with real connectors, exported over OTLP as an engine would.

`PYTHONPATH=tests python tests/e2e/real_engines.py FOLDER [whole]` drives one engine after the other, each in a process of its
own: a sound connector at level `detailed`, vLLM's own asynchronous one, and two with known bugs, which kill their engines.
`whole` adds vLLM's whole CPU engine with workers that really copy. OTEL_EXPORTER_OTLP_ENDPOINT says where the spans go.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forks
from processes import SLOW_S

TOKEN_S = 8e-6
"""How long the made-up model thinks about a token, so that steps take time as steps do."""
BATCH = 8
"""Requests that come together."""
ENGINES: dict[str, tuple[str, dict[str, Any], int]] = {
    "sound": ("OffloadConnector", {"chunk_size": 64}, 36),
    "native": ("TracedOffloadingConnector", {"cpu_bytes_to_use": 50_000_000}, 24),
    "stale": ("Faulty:stale-lookup:OffloadConnector", {"chunk_size": 256}, 0),
    "over": ("Faulty:over-report:OffloadConnector", {"chunk_size": 64}, 12),
}
"""By name: the connector, its settings, and how many requests; the stale one has the bug's own workload."""


def run_all(folder: Path, environment: Mapping[str, str], *, whole: bool = False) -> None:
    """One engine after the other, each a process of its own."""
    for call, *arguments in [(drive_whole, folder)] * whole + [(drive, folder, name) for name in ENGINES]:
        process = forks.start(call, *arguments, environment=environment, out=folder / "engines.log")
        process.join()
        assert process.exitcode == 0, (folder / "engines.log").read_text()[-3000:]


def drive(folder: Path, name: str) -> None:
    """One engine on the bare scheduler."""
    from kvtrail.connector.demo.workload import stale_lookup
    from kvtrail.connector.recording import recorder
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler
    from kvtrail.connector.simulate.scenario import Workers

    connector, extra, requests = ENGINES[name]
    transfer: dict[str, Any] = {
        "kv_connector": connector,
        "kv_connector_extra_config": {**extra, "kvtrail": {"level": "detailed"}},
        "kv_load_failure_policy": "recompute",
    }
    if ":" in connector:
        transfer["kv_connector_module_path"] = "kvtrail.connector"
    bare = BareScheduler(folder / name, transfer, workers=Workers(latest_steps=6, seed=1))
    jobs = [(j.id, list(j.prompt), j.max_tokens) for j in stale_lookup()] if not requests else prompts(name, requests)
    with contextlib.suppress(
        AssertionError, KeyError, IndexError, ValueError
    ):  # a bug may kill the engine, as in real life
        while jobs:
            for job in jobs[:BATCH]:
                bare.add(*job)
            del jobs[:BATCH]
            while bare.scheduler.has_unfinished_requests():
                bare.step(lambda output: time.sleep(output.total_num_scheduled_tokens * TOKEN_S + 1e-4))
                if (
                    name == "sound" and bare.steps % 40 == 20
                ):  # all that runs is preempted, and comes back to the host's KV
                    bare.scheduler.reset_prefix_cache(reset_running_requests=True)
            bare.scheduler.reset_prefix_cache()
    for each in recorder.recorders():
        each.flush(SLOW_S)
        each.close(SLOW_S)


def drive_whole(folder: Path) -> None:
    """vLLM's whole engine on the CPU, with the connector's own worker."""
    from kvtrail.connector.demo import workload
    from kvtrail.connector.recording import recorder
    from kvtrail.connector.simulate import tiny_model

    extra = {"kvtrail": {"level": "detailed"}}
    llm = tiny_model.build(folder / "whole", {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra})
    for part in range(2):
        llm.reset_prefix_cache()
        jobs = workload.shared_prefixes(requests=12)
        workload.run(llm, [workload.DemoRequest(f"whole-{part}-{n:02d}", j.prompt, 12) for n, j in enumerate(jobs)])
    for each in recorder.recorders():
        each.flush(SLOW_S)
        each.close(SLOW_S)


def prompts(name: str, requests: int) -> list[tuple[str, list[int], int]]:
    """Requests that share a few prefixes: ids, prompts, tokens to generate."""
    rng = random.Random(0)
    heads = [[rng.randrange(3, 512) for _ in range(32 * rng.randrange(6, 18))] for _ in range(3)]
    return [
        (f"{name}-{n:02d}", rng.choice(heads) + [rng.randrange(3, 512) for _ in range(rng.randrange(20, 200))], 30)
        for n in range(requests)
    ]


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), os.environ, whole=sys.argv[2:] == ["whole"])
