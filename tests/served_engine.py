"""vLLM's real scheduler without a model, in a process of its own, like a server: spans to a tracer, metrics on a port.

It serves requests that share prefixes and preempt each other, on vLLM's own OffloadingConnector. Its loads are
asynchronous; those of the demo's connector are not.
"""

from __future__ import annotations

import contextlib
import itertools
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import SLOW_S
from prometheus_client import start_http_server

from kvtrail.connector.demo.workload import DemoRequest, shared_prefixes
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate.bare_scheduler import BareScheduler

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


def steps(bare: BareScheduler, jobs: list[DemoRequest], name: str) -> None:
    """Serve the jobs to their ends."""
    waiting = sorted(jobs, key=lambda job: job.arrives_at_step)[::-1]
    step = 0
    while waiting or bare.scheduler.has_unfinished_requests():
        while waiting and (waiting[-1].arrives_at_step <= step or not bare.scheduler.has_unfinished_requests()):
            job = waiting.pop()
            bare.add(f"{job.id}-{name}", list(job.prompt), job.max_tokens)
        bare.step()
        step += 1


def serve(folder: Path, port: int, pipe: Connection) -> None:
    """Serve a round of requests for everything that comes through the pipe, and answer; stay until its other end closes."""
    bare = begun(folder)
    start_http_server(port, "127.0.0.1")
    with contextlib.suppress(EOFError):
        for number in itertools.count():
            pipe.recv()
            steps(bare, shared_prefixes(seed=number % 2), str(number))
            bare.scheduler.reset_prefix_cache()  # the engine's own prefix cache, so that the connector is asked
            for each in recorder.recorders():
                each.flush(SLOW_S)
            pipe.send("served")
