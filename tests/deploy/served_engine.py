"""vLLM's real scheduler without a model, in a process of its own, like a server: spans to a tracer, metrics on a port.

It serves requests that share prefixes and preempt each other, on vLLM's own OffloadingConnector, whose loads are
asynchronous; the demo's connector has none of those. It says `served` and stays until its input closes.

Call: python served_engine.py FOLDER PORT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from prometheus_client import start_http_server

from kvtrail.connector.demo.workload import Job, shared_prefixes
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate.stages import BareScheduler

ROUNDS, PAUSE_S = 4, 0.6
"""Work comes in rounds, so that whoever scrapes sees counters move."""
ENGINE = "loading"


def begun(folder: Path) -> BareScheduler:
    """The scheduler, with vLLM's own Prometheus logger, as a server has it."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    transfer = {
        "kv_connector": "TracedOffloadingConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 50_000_000},
        "engine_id": ENGINE,
    }
    bare = BareScheduler(folder / "model", transfer)
    logger = PrometheusStatLogger(bare.config, [0])
    scheduler: Any = bare.scheduler
    make_stats = scheduler.make_stats

    def logged(*arguments: Any, **named: Any) -> Any:
        stats = make_stats(*arguments, **named)
        logger.record(stats, None)
        return stats

    scheduler.make_stats = logged
    return bare


def steps(bare: BareScheduler, jobs: list[Job], name: str) -> None:
    """Serve the jobs to their ends."""
    waiting = sorted(jobs, key=lambda job: job.arrives_at_step)[::-1]
    step = 0
    while waiting or bare.scheduler.has_unfinished_requests():
        while waiting and (waiting[-1].arrives_at_step <= step or not bare.scheduler.has_unfinished_requests()):
            job = waiting.pop()
            bare.add(f"{job.id}-{name}", list(job.prompt), job.max_tokens)
        bare.step()
        step += 1


def main() -> None:
    """Serve, and stay."""
    bare = begun(Path(sys.argv[1]))
    start_http_server(int(sys.argv[2]), "127.0.0.1")
    for number in range(ROUNDS):
        steps(bare, shared_prefixes(seed=number % 2), str(number))
        bare.scheduler.reset_prefix_cache()  # the engine's own prefix cache, so that the connector is asked
        time.sleep(PAUSE_S)
    for each in recorder.recorders():
        each.flush()
    print("served", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
